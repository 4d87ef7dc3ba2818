"""What every command of ``kafkalog`` and every pipeline does with its words."""

from __future__ import annotations

from typing import Any

import typer
import typer.core

__all__ = ["Command"]


class Command(typer.core.TyperCommand):
    """A command that refuses a second value for an option that takes one: the first would be lost.

    Example: ``kafkalog get LOG --topic t --key a --key b``.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - a class of typer
        """Read the words of the command."""
        if not ctx.resilient_parsing:  # which is how a shell completes words
            _, _, given = self.make_parser(ctx).parse_args(args=list(args))
            for option in given:
                if not isinstance(option, typer.core.TyperOption) or option.multiple:
                    continue
                if not option.is_flag and given.count(option) > 1:
                    raise typer.BadParameter("given twice; it takes one value", ctx, option)
        return super().parse_args(ctx, args)
