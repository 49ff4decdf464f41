"""`penstock role`: what roles may read and write at Kafka."""

from __future__ import annotations

import click

from penstock.cli.kafka.administration import open_officer, render_role, render_roles, show_done
from penstock.cli.output import json_option, show

write_option = click.option("--write", is_flag=True, help="To write; else to read.")


@click.group("role")
def command() -> None:
    """Manage roles: what they may read and write at Kafka.

    A PERMISSION is view:NAME, stream:NAME, topic:NAME, prefix:TEXT, or just the name of a
    view, of a stream, or of the topic of one.
    """


@command.command("add")
@click.argument("name")
@click.argument("permissions", nargs=-1, metavar="[PERMISSION]...")
@click.option("--include", "includes", multiple=True, metavar="ROLE", help="Has its permissions.")
@click.option("--exclude", "excludes", multiple=True, metavar="ROLE", help="Nobody has both.")
@json_option
def add(
    name: str,
    permissions: tuple[str, ...],
    includes: tuple[str, ...],
    excludes: tuple[str, ...],
    as_json: bool,
) -> None:
    """Add a role that may read what PERMISSIONS name."""
    with open_officer() as officer:
        done = officer.add_role(name, permissions, includes=includes, excludes=excludes)
    show_done(as_json, done, f"added role {name}")


@command.command("delete")
@click.argument("name")
@json_option
def delete(name: str, as_json: bool) -> None:
    """Delete a role, and take it from all users."""
    with open_officer() as officer:
        done = officer.delete_role(name)
    show_done(as_json, done, f"deleted role {name}")


@command.command("allow")
@click.argument("name")
@click.argument("permission")
@write_option
@json_option
def allow(name: str, permission: str, write: bool, as_json: bool) -> None:
    """Add PERMISSION to a role."""
    with open_officer() as officer:
        done = officer.add_permission(name, permission, allow="write" if write else "read")
    show_done(as_json, done, f"role {name} has {permission}")


@command.command("revoke")
@click.argument("name")
@click.argument("permission")
@write_option
@json_option
def revoke(name: str, permission: str, write: bool, as_json: bool) -> None:
    """Remove PERMISSION from a role; whoever is reading by it stops."""
    with open_officer() as officer:
        done = officer.remove_permission(name, permission, allow="write" if write else "read")
    show_done(as_json, done, f"role {name} has {permission} no more")


@command.command("show")
@click.argument("name")
@json_option
def show_role(name: str, as_json: bool) -> None:
    """Show what a role allows, and who has it."""
    with open_officer() as officer:
        found = officer.role_status(name)
    show(as_json, found.as_data(), lambda target: render_role(target, found))


@command.command("list")
@json_option
def list_roles(as_json: bool) -> None:
    """List all roles."""
    with open_officer() as officer:
        found = officer.roles()
    show(as_json, [role.as_data() for role in found], lambda target: render_roles(target, found))
