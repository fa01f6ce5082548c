"""The report of ranks that were interrupted, in a process of its own: theirs have ended, and none waits for another.

Rank 0 has left its account in the launch's mailbox, as the others do.
"""

from __future__ import annotations

import sys
from pathlib import Path

from gradcheck_accum.portable import NotPortable
from gradcheck_accum.results.verdict import VerifyResult
from gradcheck_accum.verify.process.handed_back import leave
from gradcheck_accum.verify.process.parent import request_of
from gradcheck_accum.verify.ranks.gathering import gathered
from gradcheck_accum.verify.ranks.launch import Launch
from gradcheck_accum.verify.ranks.rank_report import RankReport


def main(*companions: type) -> None:
    """Put together what the request's ranks saw, and leave the report where the request's answer is expected.

    The arguments of the process are those of the child whose request it was, of which ``companions`` are the classes.
    """
    request = request_of(*companions).loads(Path(sys.argv[1]).read_bytes())
    launch, script = Launch.at(request["launch"]), request["script"] or request["module"]
    try:
        result = gathered(launch, script, RankReport.read(launch.account(0) or b""))
    except NotPortable as problem:
        result = VerifyResult.failed(script, f"the account of rank 0 cannot be read: {problem}")
    leave(result, Path(sys.argv[2]))
