"""The entry point: finds the verb, runs it, turns errors into words and exit codes."""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import os
import sys
from typing import NamedTuple

from penstock import __version__
from penstock.errors import LAST_WORDS, PenstockError, UnavailableError, quote

try:
    import click
except ImportError:
    sys.exit("penstock: the command line is not installed → pip install 'penstock[all]'")


_COLLECT = (50_000, 20, 50)
"""After how many new objects garbage is looked for while a command runs."""


class Verb(NamedTuple):
    """Where the command of a verb is, below this package, and what `penstock --help` says.

    A place is written `MODULE:FUNCTION`. Without one the command is a plug-in: of `penstock-lab`.
    """

    place: str | None
    about: str


# The order is the reader's: first steps, definitions, questions, running, the rest.
VERBS: dict[str, Verb] = {
    "init": Verb("installation:init", "Write a commented penstock.yaml and the keys it names."),
    "doctor": Verb(
        "installation:doctor",
        "Report what is installed, what is missing, and how to fix it.",
    ),
    "demo": Verb(None, "Run a demonstration on this machine."),
    "apply": Verb(
        "definitions.changes:apply", "Apply definitions from files or folders, all or nothing."
    ),
    "get": Verb("definitions.queries:get", "Show definitions."),
    "delete": Verb("definitions.changes:delete", "Delete definitions."),
    "diff": Verb("definitions.changes:diff", "Show what applying files would change."),
    "history": Verb("definitions.queries:history", "Show the changes of a definition, or of all."),
    "rollback": Verb(
        "definitions.changes:rollback", "Return definitions to what an earlier epoch held."
    ),
    "schema": Verb("definitions.queries:schema", "Print the JSON Schema of a kind."),
    "hierarchy": Verb(
        "definitions.drafts:hierarchy", "Build hierarchies of values, and draw them."
    ),
    "suggest": Verb(
        "definitions.drafts:suggest", "Classify the fields of a sample, and draft definitions."
    ),
    "access": Verb(
        "access.matrix:command", "Show who sees which attribute of which stream, and when."
    ),
    "check": Verb(
        "access.check:command", "Ask whether a subject may read or write a topic, and why."
    ),
    "situation": Verb(
        "access.situation:command",
        "Show which emergencies hold, why, and what they open; start and end them.",
    ),
    "explain": Verb(
        "access.explain:command", "Say who can see a topic, for which purposes, and why."
    ),
    "clients": Verb(
        "access.clients:command", "Show who is connected to the gateways; end a connection."
    ),
    "tail": Verb(
        "streams.tail:command",
        "Subscribe through the gateway for a purpose, and print the messages.",
    ),
    "views": Verb(
        "streams.views:command", "Make anonymized versions of streams, each for its audience."
    ),
    "pipeline": Verb(
        "streams.pipeline:command", "Detect events in streams, at scale and over long windows."
    ),
    "consent": Verb(
        "privacy.consent:command", "Record people's opt-outs from purposes, and show their effect."
    ),
    "requests": Verb(
        "privacy.requests:command", "Accept privacy requests, notify services, and follow up."
    ),
    "tokens": Verb(
        "privacy.tokens:command", "Manage the access tokens of services and front ends."
    ),
    "processing-record": Verb(
        "privacy.reports:processing_record",
        "Print the record of processing activities, from the definitions.",
    ),
    "detokenize": Verb(
        "privacy.detokenize:command", "Turn tokens back into originals, for those with the right."
    ),
    "connect": Verb(
        "streams.records:connect", "Ingest files of a folder into streams, each row once."
    ),
    "consume": Verb(
        "streams.records:consume", "Read a view at Kafka as one of its readers, as tables."
    ),
    "generate": Verb(None, "Generate synthetic data, in any volume."),
    "forecast": Verb(
        "streams.forecast:command",
        "Forecast deteriorating vital signs: advice that never grants access.",
    ),
    "simulate": Verb(None, "Simulate days of made-up people, in process or through a gateway."),
    "role": Verb(
        "access.users:role_command", "Manage roles: what they may read and write at Kafka."
    ),
    "user": Verb("access.users:user_command", "Manage users at Kafka: their roles and passwords."),
    "rbac": Verb(
        "access.rbac:command",
        "Reconcile Kafka's users and ACLs with the roles, or manage them at a prompt.",
    ),
    "cert": Verb(
        "trust.certificates:command",
        "Manage what other domains may do: issue, delegate, inspect and revoke capabilities.",
    ),
    "event-type": Verb(
        "trust.event_types:command", "Sign event types, and exchange them with other domains."
    ),
    "keys": Verb("trust.keys:command", "Issue, install and rotate the keys of sealed streams."),
    "audit": Verb("privacy.audit:command", "Read, verify and prove the audit log."),
    "up": Verb("processes:up", "Run the parts named in penstock.yaml."),
    "down": Verb("processes:down", "Stop these parts, in order."),
    "gateway": Verb("processes:gateway", "Run the MQTT gateway in the foreground."),
    "server": Verb("processes:server", "Run the server of privacy requests in the foreground."),
    "console": Verb(
        "processes:console_command", "Run the console, for a browser, in the foreground."
    ),
    "status": Verb("processes:status", "Show the parts that run."),
    "password": Verb("installation:password", "Add, change or remove a user in the password file."),
    "dev": Verb("installation:dev", "Run servers for development on this machine."),
    "bench": Verb(None, "Run a benchmark and print figures."),
}


class LazyGroup(click.Group):
    """A group whose commands are modules of this package, and plug-ins."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the verbs in the reader's order, then those of other plug-ins."""
        plugins = _list_plugins()
        known = [name for name, verb in VERBS.items() if verb.place or name in plugins]
        return [*known, *(name for name in sorted(plugins) if name not in VERBS)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import the module of the verb."""
        verb = VERBS.get(cmd_name)
        if verb is not None and verb.place is not None:
            module, _, function = verb.place.partition(":")
            found = importlib.import_module(f"penstock.cli.{module}")
            command: click.Command = getattr(found, function)
            return command
        if verb is None and cmd_name not in _list_plugins():
            return None
        from penstock.cli.plugins import COMMANDS, load_plugin

        return load_plugin(COMMANDS, cmd_name, click.Command)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs without importing any of them."""
        plugins = _list_plugins()
        with formatter.section("Verbs"):
            formatter.write_dl(
                [
                    (name, VERBS[name].about if name in VERBS else f"From {plugins[name]}.")
                    for name in self.list_commands(ctx)
                ]
            )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve the verb; a wrong one is answered with the nearest."""
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            plugins = _list_plugins()
            if args[0] not in plugins:
                import difflib

                near = difflib.get_close_matches(args[0], [*VERBS, *plugins], n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise click.UsageError(f"there is no verb {args[0][:60]!r}{hint}", ctx)
        return super().resolve_command(ctx, args)


@functools.cache
def _list_plugins() -> dict[str, str]:
    """Return the verbs that are plugged in, and by which distribution."""
    from penstock.cli.plugins import COMMANDS, find_plugins

    found = find_plugins(COMMANDS)
    return {name: it.dist.name if it.dist else it.module for name, it in found.items()}


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="penstock")
@click.option(
    "--config",
    "config_file",
    type=click.Path(dir_okay=False),
    envvar="PENSTOCK_CONFIG",
    help="The configuration file. Default: penstock.yaml in the working folder, else "
    "built-in defaults.",
)
@click.pass_context
def penstock(ctx: click.Context, config_file: str | None) -> None:
    """Control the flow of personal data through publish/subscribe systems."""
    ctx.obj = config_file


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    given = sys.argv[1:] if arguments is None else arguments
    if arguments is None:
        # Imports make objects that stay. To look through them for garbage, 200 times on the way and
        # once more when the process ends, would take a third of a second.
        gc.set_threshold(*_COLLECT)
        atexit.register(gc.freeze)
    # Looking for plug-ins of pydantic means reading the metadata of every package; we have none.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    try:
        code = _run(given)
        sys.stdout.flush()
    except (SystemExit, BrokenPipeError):
        # The reader of our output went away, as `head` does. Click ends with 1 then, which
        # would mean "denied" here.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code)


def _run(given: list[str]) -> int:
    try:
        code = penstock.main(args=given, prog_name="penstock", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message())
        return 2
    except click.UsageError as error:
        usage = error.ctx.command_path if error.ctx else "penstock"
        _print_error(error.format_message(), f"see `{usage} --help`", given)
        return 2
    except click.ClickException as error:
        _print_error(error.format_message(), None, given)
        return 2
    except (click.Abort, KeyboardInterrupt):
        return 130
    except (PenstockError, OSError) as error:
        if isinstance(error, BrokenPipeError) or os.environ.get("PENSTOCK_DEBUG"):
            raise
        told = error if isinstance(error, PenstockError) else _name_failure(error)
        _print_error(told.message, told.fix, given, told)
        return told.exit_code
    return code if isinstance(code, int) else 0


def _name_failure(error: OSError) -> UnavailableError:
    """Name the file or address that nobody foresaw: it is no fault of the program."""
    what = quote(str(error.filename)) if error.filename else "the system"
    return UnavailableError(
        f"{what}: {error.strerror or type(error).__name__}",
        fix="see that it exists, and that this user may use it",
    )


def _print_error(
    message: str, fix: str | None, given: list[str], error: PenstockError | None = None
) -> None:
    # Imported here: what draws tables takes longer to load than all of `penstock --help`.
    from penstock.cli.output import print_error

    print_error(message, fix, as_json="--json" in given, error=error)
    place = os.environ.get(LAST_WORDS)
    if place:
        said = message if fix is None else f"{message} → {fix}"
        _write_private(place, said)


def _write_private(place: str, text: str) -> None:
    """Leave a text for the supervisor; where that fails, the log has it all the same."""
    with contextlib.suppress(OSError):
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        with os.fdopen(os.open(place, flags, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
