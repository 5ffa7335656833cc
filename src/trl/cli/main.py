"""The command `trl`: from arguments to a plan, without importing torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trl.cli.commands import Command

_DISTRIBUTION = "trl-distributed"


def main(argv: Sequence[str] | None = None) -> int:
    """Run `trl`.

    Args:
        argv: arguments after `trl`; those of this process if None.

    Returns:
        The exit code: 2 for a mistake of the user. A command that trains in this very process does not return.
    """
    from trl.errors import TrlError

    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(words)
    except TrlError as error:
        print(f"trl: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `trl sft --help | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(words: list[str]) -> int:
    from importlib import import_module

    from trl.cli.commands import COMMANDS, TOOLS

    if not words or words[0] in ("-h", "--help", "help"):
        print(_overview())
    elif words[0] in ("-V", "--version"):
        print(f"trl {_version()}")
    elif words[0] in TOOLS:
        return import_module(TOOLS[words[0]].module).main(words[1:])
    elif words[0] in COMMANDS:
        return _train(COMMANDS[words[0]], words[1:])
    else:
        raise _unknown_command(words[0])
    return 0


def _train(command: Command, argv: list[str]) -> int:
    if "--help" in argv or "-h" in argv:
        from trl.cli.help import command_help

        print(command_help(command))
        return 0
    from trl.cli.check import check_arguments, check_batch, check_early
    from trl.launch.devices import count_accelerators, count_cores
    from trl.launch.environment import is_launched
    from trl.launch.flags import from_environment
    from trl.launch.plan import make_plan
    from trl.launch.start import start

    checked = check_arguments(command, argv)
    check_early(checked.values)
    env = {**os.environ, **checked.environment}
    plan = make_plan(
        flags={**from_environment(env), **checked.flags},
        worker=(command.worker, command.name, *checked.arguments),
        env=env,
        accelerators=0 if checked.values.get("use_cpu") else count_accelerators(env),
        cores=count_cores(),
        variables=checked.environment,
    )
    check_batch(checked.values, plan.processes if is_launched(env) or "nnodes" not in checked.flags else None)
    return start(plan)


def _overview() -> str:
    from trl.cli.commands import COMMANDS, TOOLS

    summaries = [(c.name, c.summary) for c in COMMANDS.values()] + [(t.name, t.summary) for t in TOOLS.values()]
    commands = [f"  {name:<10}{summary}" for name, summary in summaries]
    return "\n".join(
        [
            "usage: trl COMMAND [arguments]",
            "",
            "Post-training of language models on one device or many: the global batch decides the result,",
            "the number of devices only the time.",
            "",
            "commands:",
            *commands,
            "",
            "  trl COMMAND --help   the arguments of a command",
            "  trl --version        the version",
            "",
            "example:",
            *(f"  trl {command.name} {command.example}" for command in COMMANDS.values()),
        ]
    )


def _version() -> str:
    from importlib.metadata import version

    return version(_DISTRIBUTION)


def _unknown_command(word: str) -> Exception:
    import difflib

    from trl.cli.commands import COMMANDS, TOOLS
    from trl.errors import ConfigError

    known = [*COMMANDS, *TOOLS]
    near = difflib.get_close_matches(word, known, n=1)
    hint = f"did you mean `trl {near[0]}`?" if near else f"commands are: {', '.join(known)}"
    return ConfigError(f"There is no command {word!r}.", fix=hint)


if __name__ == "__main__":
    sys.exit(main())
