"""Dataclasses from the command line and a YAML file, for workers and for scripts of the user's.

    parser = TrlParser((ScriptArguments, SFTConfig, ModelConfig))
    script_args, training_args, model_args = parser.parse_args_and_config()

Every field is an argument; `--config file.yaml` gives values for any of them, and the command line wins.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Iterable
from dataclasses import fields
from typing import Any, NoReturn

from transformers import HfArgumentParser
from transformers.hf_argparser import string_to_bool

from ..errors import ConfigError
from ..launch.config_file import ConfigFile, find_config, read_config
from ..launch.flags import split_mapping


class TrlParser(HfArgumentParser):
    """transformers' parser, with `--config`, exact names only, and mistakes told in a sentence.

    Args:
        dataclass_types: one dataclass or several; no two may have a field of the same name.
    """

    def __init__(self, dataclass_types: Any = None, **kwargs: Any):
        # Abbreviations would make `--learning_rat 3` the learning rate.
        kwargs.setdefault("allow_abbrev", False)
        types = [dataclass_types] if isinstance(dataclass_types, type) else list(dataclass_types or [])
        names = [f.name for t in types for f in fields(t) if f.init]
        doubled = sorted({n for n in names if names.count(n) > 1})
        if doubled:
            raise ConfigError(f"two of {', '.join(t.__name__ for t in types)} have a field {', '.join(doubled)}")
        super().__init__(types, **kwargs)  # type: ignore[arg-type]
        for action in self._actions:
            if action.type is string_to_bool and action.nargs is None:
                # `bool | None`: the bare switch means true, as it does for `bool`.
                action.nargs, action.const = "?", True

    def error(self, message: str) -> NoReturn:
        """Called by argparse: a value of the wrong type, something missing."""
        raise ConfigError(message, fix="--help lists every argument")

    def parse_args_and_config(
        self,
        args: Iterable[str] | None = None,
        return_remaining_strings: bool = False,
        fail_with_unknown_args: bool = True,
        separate_remaining_strings: bool = False,
    ) -> tuple[Any, ...]:
        """One instance of each dataclass.

        Args:
            args: the words of the command line; those of this process if None.
            return_remaining_strings: add the words nobody knows, as a list at the end.
            fail_with_unknown_args: without that, unknown words and keys are an error.
            separate_remaining_strings: return unknown YAML keys apart from the unknown words.

        Raises:
            ConfigError: an unknown argument or key, or a value of the wrong type.
        """
        path, words = find_config(list(sys.argv[1:] if args is None else args))
        unknown_keys: list[str] = []
        if path is not None:
            config = read_config(path)
            os.environ.update(config.environment)
            unknown_keys = self._take_defaults(config)
        *parsed, unknown_words = self.parse_args_into_dataclasses(
            args=words, return_remaining_strings=True, look_for_args_file=False
        )
        if return_remaining_strings:
            if separate_remaining_strings:
                return (*parsed, unknown_keys, unknown_words)
            return (*parsed, unknown_keys + unknown_words)
        unknown = [*unknown_keys, *unknown_words]
        if unknown and fail_with_unknown_args:
            raise ConfigError(f"unknown: {', '.join(self._with_suggestion(u) for u in unknown)}")
        return tuple(parsed)

    def _take_defaults(self, config: ConfigFile) -> list[str]:
        """Make the file's values the defaults; what is neither a field nor a flag of the launcher is returned."""
        _, values = split_mapping(config.values, config.texts)
        known = {action.dest for action in self._actions}
        self.set_defaults(**{key: value for key, value in values.items() if key in known})
        for action in self._actions:
            if action.dest in values:
                action.required = False
        unknown = [key for key in values if key not in known]
        return [word for key in unknown for word in (f"--{key}", str(values[key]))]

    def _with_suggestion(self, word: str) -> str:
        name = word.lstrip("-").partition("=")[0]
        near = difflib.get_close_matches(name, [a.dest for a in self._actions], n=1)
        return f"{word} (did you mean --{near[0]}?)" if near and word.startswith("--") else word
