"""From settings to a supervisor that can run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from penstock.config import FILE_VARIABLE, Config
from penstock.errors import UnavailableError, quote
from penstock.supervisor.parts import configured_parts
from penstock.supervisor.supervisor import Supervisor

Load = Callable[[Mapping[str, str]], Config]


def prepare(load: Load, environ: Mapping[str, str]) -> tuple[Config, Supervisor]:
    """Load the settings, let the parts choose what was left open, and make the data folder.

    What is chosen goes to all parts as environment variables, which go before the file:
    every process of the installation then has the same settings.
    """
    config = load(environ)
    parts = configured_parts(config)
    chosen = {name: value for part in parts for name, value in part.choose(config).items()}
    if config.file:
        chosen[FILE_VARIABLE] = str(config.file)
    settled = {**environ, **chosen}
    config = load(settled)
    try:
        config.data.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UnavailableError(
            f"the data folder {quote(config.data)} cannot be made: {error.strerror}",
            fix=f"make it yourself, or change {config.place('data')}",
        ) from None
    return config, Supervisor(config, parts, settled)
