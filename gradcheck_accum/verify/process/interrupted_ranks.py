"""The report on ranks that were interrupted, made in a process of its own because theirs have ended.

Rank 0 has left its report in the launch's mailbox, as the others do.
"""

from __future__ import annotations

import sys
from pathlib import Path

from gradcheck_accum.portable import NotPortable
from gradcheck_accum.results.verdict import VerifyResult
from gradcheck_accum.verify.process.parent import request_of
from gradcheck_accum.verify.process.result_file import leave
from gradcheck_accum.verify.ranks.gathering import gathered
from gradcheck_accum.verify.ranks.launch import Launch
from gradcheck_accum.verify.ranks.rank_report import RankReport


def main(*companions: type) -> None:
    """Combine what the request's ranks saw, and write the report where the request's answer is expected.

    The process has the arguments of the child that the request was for; ``companions`` are the classes in the request.
    """
    request = request_of(*companions).loads(Path(sys.argv[1]).read_bytes())
    launch, script = Launch.at(request["launch"]), request["script"] or request["module"]
    try:
        result = gathered(launch, script, RankReport.read(launch.account(0) or b""))
    except NotPortable as problem:
        result = VerifyResult.failed(script, f"the account of rank 0 cannot be read: {problem}")
    leave(result, Path(sys.argv[2]))
