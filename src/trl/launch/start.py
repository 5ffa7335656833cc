"""Carry out a launch plan."""

from __future__ import annotations

import os
import sys
import uuid

from trl.launch.agent import run_agent
from trl.launch.environment import JOB_VARIABLE, is_launched
from trl.launch.guard import start_guardian
from trl.launch.plan import LaunchPlan


def start(plan: LaunchPlan) -> int:
    """Start what the plan says.

    Returns:
        The exit code of an agent. In place it does not return: the worker takes over this process, with its id, so
        that whoever started it watches the worker itself.
    """
    os.environ.update(plan.environment)
    if plan.kind == "agent":
        for line in (*plan.notes, f"same as: {plan.command()}"):
            print(f"trl: {line}", file=sys.stderr, flush=True)
    job_id = uuid.uuid4().hex
    if not is_launched():  # otherwise whoever launched this process looks after it
        os.environ[JOB_VARIABLE] = job_id
        start_guardian(job_id)
    if plan.kind == "agent":
        return run_agent(plan.torchrun, plan.worker, job_id)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", *plan.worker])
