"""A worker that imports no torch. `python -m stub_worker <folder> <what each rank does> ...`.

Each rank writes `<folder>/rank<r>` with its process id when it is ready, then does its part: `ok`, `raise:TEXT`,
`mistake:TEXT`, `exit:CODE`, `kill:SIGNAL`, `sleep`, `stubborn` (ignores SIGTERM and SIGINT), `deaf` (ignores SIGINT),
`child` (sleeps, with a child that ignores SIGTERM), `lost` (raises as gloo does, shortly after the others), `flaky`
(fails until restarted).
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from trl.errors import DataError
from trl.launch.environment import read_process_info
from trl.launch.failure import record_failures
from trl.launch.guard import die_with_parent

_CHILD = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(120)"


def act(kind: str, text: str) -> None:
    if kind == "raise":
        raise ValueError(text)
    if kind == "mistake":
        raise DataError(text, fix="mend it")
    if kind == "exit":
        sys.exit(int(text))
    if kind == "kill":
        os.kill(os.getpid(), getattr(signal, text))
    if kind in ("stubborn", "deaf"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN if kind == "stubborn" else signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    if kind == "child":
        subprocess.Popen(
            [sys.executable, "-c", _CHILD],
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    if kind == "flaky" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise ValueError("only at first")


def main(argv: list[str]) -> int:
    die_with_parent()
    with record_failures():
        info = read_process_info()
        folder, actions = Path(argv[0]), argv[1:]
        kind, _, text = actions[info.rank % len(actions)].partition(":")
        if kind in ("stubborn", "deaf"):
            act(kind, text)
        seen = {"pid": os.getpid(), "ppid": os.getppid(), "world_size": info.world_size, "argv": argv[1:]}
        seen |= {
            name: os.environ.get(name) for name in ("MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "TRL_JOB_ID")
        }
        (folder / f"rank{info.rank}.tmp").write_text(json.dumps(seen))
        os.rename(folder / f"rank{info.rank}.tmp", folder / f"rank{info.rank}")
        deadline = time.monotonic() + 20
        while sum(1 for _ in folder.glob("rank?")) < info.world_size and time.monotonic() < deadline:
            time.sleep(0.01)
        if kind == "lost":
            time.sleep(0.03)
            raise RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1234")
        act(kind, text)
        if kind in ("sleep", "stubborn", "deaf", "child"):
            time.sleep(120)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
