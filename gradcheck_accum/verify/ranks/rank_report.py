"""What one rank saw, as it is sent to rank 0: data only, so that reading it runs no code."""

from __future__ import annotations

from dataclasses import dataclass

from gradcheck_accum.engine.cost import Cost, WindowCost
from gradcheck_accum.engine.independence import Proof
from gradcheck_accum.engine.loss_graph import LossReading
from gradcheck_accum.engine.reference import ReferenceEngine
from gradcheck_accum.engine.streaming import Streamed
from gradcheck_accum.engine.tensors_as_data import TENSORS
from gradcheck_accum.ledger import events
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.portable import NotPortable, Portable
from gradcheck_accum.results.verdict import ByParameter, ParameterError
from gradcheck_accum.verify.book.clips import ClipCall
from gradcheck_accum.verify.book.given_data import Draw, Given
from gradcheck_accum.verify.book.holding import Mode
from gradcheck_accum.verify.book.records import Measured, Record, Replay, Update
from gradcheck_accum.verify.judge.observed_run import ObservedRun
from gradcheck_accum.verify.judge.options import Options
from gradcheck_accum.verify.vectors.inner_products import InnerProducts
from gradcheck_accum.verify.watching.framework_remedies import Remark
from gradcheck_accum.verify.watching.manual_updates import OwnSteps
from gradcheck_accum.verify.watching.rank_averaging import Needless
from gradcheck_accum.verify.watching.unfilled_windows import GivenUp


@dataclass(frozen=True, slots=True)
class RankReport:
    """What one rank saw, its caller's options, and how its script ended: ``error`` is empty if it did so normally."""

    seen: ObservedRun
    asked: Options
    error: str

    def written(self) -> bytes:
        """The report as bytes for another process; ``seen`` has to be portable."""
        return _REPORTS.dumps(self)

    @classmethod
    def read(cls, content: bytes) -> RankReport:
        """The report that was written. Raises NotPortable for anything else."""
        found = _REPORTS.loads(content)
        if (
            not isinstance(found, RankReport)
            or not isinstance(found.seen, ObservedRun)
            or not isinstance(found.asked, Options)
            or not isinstance(found.error, str)
        ):
            raise NotPortable("not the account of a rank")
        return found


_REPORTS = Portable(
    [
        RankReport,
        ClipCall,
        Cost,
        Draw,
        Given,
        GivenUp,
        InnerProducts,
        Location,
        LossReading,
        Measured,
        Mode,
        Needless,
        Options,
        OwnSteps,
        Proof,
        Record,
        ReferenceEngine,
        Remark,
        Replay,
        ObservedRun,
        Streamed,
        Update,
        WindowCost,
        events.AverageUpdate,
        events.Backward,
        events.Cause,
        events.ChangedByStep,
        events.Clip,
        events.Count,
        events.DataGradientRead,
        events.Factor,
        events.GraphsHeld,
        events.Listed,
        events.Quotient,
        events.LossShown,
        events.ShownLoss,
        events.Opaque,
        events.Operation,
        events.Purpose,
        events.Reason,
        events.Reduction,
        events.Rework,
        events.ScaleGrads,
        events.ScalerUpdate,
        events.SchedulerStep,
        events.Step,
        events.Term,
        events.Trace,
        events.Unscale,
        events.WindowBound,
        events.ZeroGrad,
        ByParameter,
        ParameterError,
    ],
    TENSORS,
)
