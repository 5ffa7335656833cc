"""Which arguments are torchrun's and which are the trainer's.

One command line and one YAML file hold both kinds. The table below is ours rather than read from torch, because it is
needed before torch is imported; a test compares it with the parser of the installed torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trl.errors import ConfigError

FlagType = Literal["switch", "text", "int", "number"]


@dataclass(frozen=True)
class LaunchFlag:
    """One torchrun flag.

    Attributes:
        name: the long name with underscores, without dashes.
        type: what its value looks like; a "switch" takes none.
        help: one line for `trl sft --help`.
        short: a one-letter spelling, or "".
        choices: the only values allowed, where there are any.
        reads_environment: torchrun takes the value of `PET_<NAME>` where the flag is not given.
    """

    name: str
    type: FlagType
    help: str
    short: str = ""
    choices: tuple[str, ...] = ()
    reads_environment: bool = True


_TABLE = (
    LaunchFlag("nnodes", "text", "Number of nodes, or MIN:MAX for an elastic job."),
    LaunchFlag(
        "nproc_per_node", "text", "Processes on this node: a number, gpu, cpu or auto. Default: one per device."
    ),
    LaunchFlag("node_rank", "int", "Rank of this node, for the static rendezvous."),
    LaunchFlag("rdzv_backend", "text", "How nodes find each other: c10d or static."),
    LaunchFlag("rdzv_endpoint", "text", "HOST:PORT where the nodes meet."),
    LaunchFlag("rdzv_id", "text", "Name of the job, the same on every node."),
    LaunchFlag("rdzv_conf", "text", "More rendezvous settings: KEY=VALUE,KEY=VALUE."),
    LaunchFlag("standalone", "switch", "One node that picks its own port (what happens anyway without other flags)."),
    LaunchFlag("master_addr", "text", "Address of node 0, for the static rendezvous."),
    LaunchFlag("master_port", "int", "Port on node 0, for the static rendezvous."),
    LaunchFlag("local_addr", "text", "Address of this node, where its own look-up is wrong."),
    LaunchFlag("max_restarts", "int", "How often a failed group of workers is started again."),
    LaunchFlag("monitor_interval", "number", "Seconds between two looks at the workers."),
    LaunchFlag("start_method", "text", "How workers are created.", choices=("spawn", "fork", "forkserver")),
    LaunchFlag("event_log_handler", "text", "Where events of the agent are logged."),
    LaunchFlag("role", "text", "Name of the workers in logs."),
    LaunchFlag("log_dir", "text", "Folder for the logs of the workers."),
    LaunchFlag("redirects", "text", "Write streams of workers to files: 1 = out, 2 = err, 3 = both.", short="r"),
    LaunchFlag("tee", "text", "Like redirects, and show them as well.", short="t"),
    LaunchFlag("local_ranks_filter", "text", "Show only these local ranks: 0,1,2."),
    LaunchFlag("duplicate_stdout_filters", "text", "Copy lines of stdout that hold one of these words to a file."),
    LaunchFlag("duplicate_stderr_filters", "text", "Copy lines of stderr that hold one of these words to a file."),
    LaunchFlag("logs_specs", "text", "Entry point that decides where logs go.", reads_environment=False),
    LaunchFlag(
        "numa_binding",
        "text",
        "Bind each worker to the cores near its device.",
        choices=("node", "socket", "exclusive", "core-complex"),
        reads_environment=False,
    ),
    LaunchFlag("signals_to_handle", "text", "Signals that end the job, as names: SIGTERM,SIGINT."),
    LaunchFlag("shutdown_timeout", "int", "Seconds that workers have to end before they are killed. Default 5."),
    LaunchFlag("virtual_local_rank", "switch", "Show each worker only its own device."),
)
LAUNCH_FLAGS: dict[str, LaunchFlag] = {flag.name: flag for flag in _TABLE}

# What runs is decided by the command, so the flags with which torchrun is told what to run have no meaning here.
_REFUSED = {"module": "m", "no_python": "", "run_path": ""}


def canonical(name: str) -> str:
    """A name in any spelling (`--rdzv-id`, `rdzv_id`) as a Python identifier (`rdzv_id`)."""
    return name.removeprefix("--").removeprefix("-").replace("-", "_")


def is_option(token: str) -> bool:
    """Whether a token of the command line names an option; `-1` and `-1e-3` are values."""
    return token.startswith("--") or (
        len(token) > 1 and token[0] == "-" and not (token[1].isdigit() or token[1] == ".")
    )


def split_argv(argv: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Take the torchrun flags out of a command line.

    Args:
        argv: arguments after the name of the command.

    Returns:
        flags: {name with underscores: value as text}; a switch that is on has the value "true".
        rest: all other arguments, in their order.

    Raises:
        ConfigError: a flag without its value, with a value of the wrong kind, or one that has no meaning here.
    """
    short = {f"-{flag.short}": flag for flag in _TABLE if flag.short}
    flags: dict[str, str] = {}
    rest: list[str] = []
    tokens = list(argv)
    position = 0
    while position < len(tokens):
        token = tokens[position]
        position += 1
        spelling, equals, attached = token.partition("=")
        if spelling.startswith("--"):
            _refuse(canonical(spelling), spelling)
            flag = LAUNCH_FLAGS.get(canonical(spelling))
        else:
            if spelling == "-m":
                _refuse("module", spelling)
            flag = short.get(spelling)
        if flag is None:
            rest.append(token)
        elif flag.type == "switch":
            if equals:
                raise ConfigError(f"{spelling} takes no value, but {attached!r} was given.")
            flags[flag.name] = "true"
        else:
            if not equals:
                if position == len(tokens) or is_option(tokens[position]):
                    raise ConfigError(f"{spelling} needs a value.", fix=flag.help)
                attached = tokens[position]
                position += 1
            flags[flag.name] = _checked(flag, attached, spelling)
    return flags, rest


def split_mapping(values: Mapping[str, Any], texts: Mapping[str, str]) -> tuple[dict[str, str], dict[str, Any]]:
    """Take the torchrun flags out of the top level of a YAML file.

    Args:
        values: {key: value as YAML reads it}.
        texts: {key: the scalar as it is written}. Flags are taken from here, since YAML reads `nnodes: 1:2` as 62.

    Returns:
        flags: as for `split_argv`.
        rest: what is not a torchrun flag.

    Raises:
        ConfigError: as for `split_argv`.
    """
    flags: dict[str, str] = {}
    rest: dict[str, Any] = {}
    for key, value in values.items():
        name = canonical(key)
        _refuse(name, key)
        flag = LAUNCH_FLAGS.get(name)
        if flag is None:
            rest[key] = value
        elif value is None:
            continue
        elif flag.type == "switch":
            if not isinstance(value, bool):
                raise ConfigError(f"{key} is true or false, not {value!r}.")
            if value:
                flags[name] = "true"
        elif isinstance(value, list):
            flags[name] = _checked(flag, ",".join(str(item) for item in value), key)
        elif isinstance(value, dict):
            raise ConfigError(f"{key} takes a single value, not a mapping.", fix=flag.help)
        else:
            flags[name] = _checked(flag, texts.get(key, str(value)), key)
    return flags, rest


def from_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The flags that torchrun itself takes from `PET_<NAME>` variables, so that the plan knows of them."""
    flags: dict[str, str] = {}
    for flag in _TABLE:
        variable = f"PET_{flag.name.upper()}"
        if not flag.reads_environment or not env.get(variable):
            continue
        if flag.type != "switch":
            flags[flag.name] = _checked(flag, env[variable], variable)
        elif env[variable] != "0":
            flags[flag.name] = "true"
    return flags


def to_argv(flags: Mapping[str, str]) -> list[str]:
    """Flags as arguments for torchrun, in the order of the table."""
    argv: list[str] = []
    for name, flag in LAUNCH_FLAGS.items():
        if name in flags:
            argv += [f"--{name}"] if flag.type == "switch" else [f"--{name}", flags[name]]
    return argv


def _refuse(name: str, spelling: str) -> None:
    if name in _REFUSED:
        raise ConfigError(
            f"{spelling} has no meaning here: the command decides what torchrun runs.",
            fix="for a script of your own, use torchrun itself: torchrun --nproc_per_node 8 train.py",
        )


def _checked(flag: LaunchFlag, value: str, spelling: str) -> str:
    try:
        if flag.type == "int":
            int(value)
        elif flag.type == "number":
            float(value)
    except ValueError:
        kind = "a whole number" if flag.type == "int" else "a number"
        raise ConfigError(f"{spelling} takes {kind}, not {value!r}.", fix=flag.help) from None
    if flag.choices and value not in flag.choices:
        raise ConfigError(f"{spelling} takes one of {', '.join(flag.choices)}, not {value!r}.")
    return value
