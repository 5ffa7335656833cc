"""The token loss: ours, `torch.nn.functional.linear_cross_entropy` and the plain one, forward and backward.

    python benchmarks/token_loss.py                     # 2,048 positions, width 576, vocabulary 49,152
    python benchmarks/token_loss.py --positions 4096 --hidden 256 --repeats 5

Each in a process of its own: CPU seconds of the fastest of several repeats, and by how much the process's peak memory
grew over the inputs and their gradients. With `masked`, that share of the positions has no target: ours leaves them
out before the head, the others are told by `ignore_index`.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from report import about_this_run, single_threaded, write_result

CHUNKS = (128, 256, 512, 1024)
VARIANTS = ["plain", "torch auto", *(f"torch {rows}" for rows in CHUNKS), "ours"]


def main() -> int:
    options = parse()
    if options.child:
        print(json.dumps(measure(json.loads(options.child))))
        return 0
    size = {"positions": options.positions, "hidden": options.hidden, "vocabulary": options.vocabulary}
    results = []
    for dtype in ("fp32", "bf16"):
        for masked in (0.0, 0.75):
            print(f"\n{dtype}{' autocast' if dtype == 'bf16' else ''}, {masked:.0%} of the positions masked")
            for variant in VARIANTS:
                job = {**size, "variant": variant, "dtype": dtype, "masked": masked, "repeats": options.repeats}
                result = in_child(job)
                results.append({**job, **result})
                print(
                    f"  {variant:<12}{result['cpu_seconds']:8.2f} CPU seconds{result['memory_mib']:8.0f} MiB",
                    flush=True,
                )
    write_result(options.output, about_this_run(threads=1), results)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("--positions", type=int, default=2048)
    parser.add_argument("--hidden", type=int, default=576)
    parser.add_argument("--vocabulary", type=int, default=49_152)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "token_loss.json")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args()


def in_child(job: dict[str, Any]) -> dict[str, float]:
    command = [sys.executable, __file__, "--child", json.dumps(job)]
    done = subprocess.run(command, env=single_threaded(), capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr[-4000:])
    return json.loads(done.stdout.splitlines()[-1])


def measure(job: dict[str, Any]) -> dict[str, float]:
    """One variant in this process: CPU seconds of forward and backward, and growth of the peak memory in MiB."""
    import torch

    from trl.layout.labels import IGNORE

    generator = torch.Generator().manual_seed(0)
    count, width, vocabulary = job["positions"], job["hidden"], job["vocabulary"]
    hidden = torch.randn(count, width, generator=generator).requires_grad_()
    weight = torch.randn(vocabulary, width, generator=generator).mul_(width**-0.5).requires_grad_()
    targets = torch.randint(0, vocabulary, (count,), generator=generator)
    targets[: int(count * job["masked"])] = IGNORE
    # The gradients belong to the inputs: their memory is there before the peak is read.
    hidden.grad, weight.grad = torch.ones_like(hidden), torch.ones_like(weight)
    loss = loss_of(job["variant"])
    before, seconds = peak_mib(), []
    for _ in range(job["repeats"]):
        began = time.process_time()
        with torch.autocast("cpu", torch.bfloat16, enabled=job["dtype"] == "bf16"):
            value = loss(hidden, weight, targets)
        value.backward()
        seconds.append(time.process_time() - began)
        hidden.grad = weight.grad = None
        del value
    return {"cpu_seconds": min(seconds), "memory_mib": peak_mib() - before}


def loss_of(variant: str) -> Callable[..., Any]:
    """hidden [N, H], weight [V, H], targets [N] -> the summed loss."""
    import torch.nn.functional as F
    from torch.nn import LinearCrossEntropyOptions

    from trl.layout.labels import IGNORE
    from trl.losses.token import linear_token_loss

    def ours(hidden, weight, targets):
        index = (targets != IGNORE).nonzero().squeeze(1)
        return linear_token_loss(hidden.index_select(0, index), weight, targets[index]).total

    def plain(hidden, weight, targets):
        return F.cross_entropy(F.linear(hidden, weight).float(), targets, reduction="sum")

    if variant in ("ours", "plain"):
        return {"ours": ours, "plain": plain}[variant]
    chunk = variant.split()[1]
    if chunk == "auto":
        options = LinearCrossEntropyOptions()
    else:
        options = LinearCrossEntropyOptions(batch_chunk_size=int(chunk), chunking_method=None)
    return lambda hidden, weight, targets: F.linear_cross_entropy(
        hidden, weight, targets, reduction="sum", options=options
    )


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    sys.exit(main())
