"""`penstock user` and `role`: who is at Kafka, and what the roles of users may read and write."""

from __future__ import annotations

import click

from penstock.cli.kafka.administration import (
    ask_password,
    made_password,
    open_officer,
    render_role,
    render_roles,
    render_user,
    render_users,
    show_done,
)
from penstock.cli.output import json_option, show

generate_option = click.option(
    "--generate", is_flag=True, help="Generate a password, and write it to a file of its own."
)


@click.group("user")
def user_command() -> None:
    """Manage users at Kafka: their roles and passwords."""


@user_command.command("add")
@click.argument("name")
@click.option("--role", "roles", multiple=True, metavar="ROLE", help="A role; several times.")
@generate_option
@json_option
def add_user(name: str, roles: tuple[str, ...], generate: bool, as_json: bool) -> None:
    """Add a user; the password is asked for, or read from standard input."""
    with open_officer() as officer:
        if generate:
            with made_password(name) as (password, file):
                done = officer.add_user(name, password, roles)
            more = {"password_file": str(file)}
        else:
            password, more = ask_password(), {}
            done = officer.add_user(name, password, roles)
    show_done(as_json, done, f"added user {name}", more=more)


@user_command.command("password")
@click.argument("name")
@generate_option
@json_option
def set_password(name: str, generate: bool, as_json: bool) -> None:
    """Set a new password for a user."""
    with open_officer() as officer:
        if generate:
            with made_password(name) as (password, file):
                done = officer.set_password(name, password)
            more = {"password_file": str(file)}
        else:
            password, more = ask_password(), {}
            done = officer.set_password(name, password)
    show_done(as_json, done, f"set the password of {name}", more=more)


@user_command.command("delete")
@click.argument("name")
@json_option
def delete_user(name: str, as_json: bool) -> None:
    """Delete a user: nothing may be read any more, and no login works."""
    with open_officer() as officer:
        done = officer.delete_user(name)
    show_done(as_json, done, f"deleted user {name}")


@user_command.command("block")
@click.argument("name")
@json_option
def block(name: str, as_json: bool) -> None:
    """Block a user: connections to gateways end, and nothing may be read at Kafka."""
    with open_officer() as officer:
        done = officer.block_user(name)
    show_done(as_json, done, f"blocked user {name}")


@user_command.command("unblock")
@click.argument("name")
@json_option
def unblock(name: str, as_json: bool) -> None:
    """Let a user in again, with the roles they have."""
    with open_officer() as officer:
        done = officer.block_user(name, blocked=False)
    show_done(as_json, done, f"unblocked user {name}")


@user_command.command("assign")
@click.argument("name")
@click.argument("role")
@json_option
def assign(name: str, role: str, as_json: bool) -> None:
    """Assign ROLE to a user."""
    with open_officer() as officer:
        done = officer.assign_role(name, role)
    show_done(as_json, done, f"{name} has the role {role}")


@user_command.command("remove")
@click.argument("name")
@click.argument("role")
@json_option
def remove(name: str, role: str, as_json: bool) -> None:
    """Take ROLE from a user; whoever is reading by it stops."""
    with open_officer() as officer:
        done = officer.remove_role(name, role)
    show_done(as_json, done, f"{name} has the role {role} no more")


@user_command.command("show")
@click.argument("name")
@json_option
def show_user(name: str, as_json: bool) -> None:
    """Show the roles of a user, and what they allow."""
    with open_officer() as officer:
        found = officer.user_status(name)
    show(as_json, found.as_data(), lambda target: render_user(target, found))


@user_command.command("list")
@json_option
def list_users(as_json: bool) -> None:
    """List all users."""
    with open_officer() as officer:
        found = officer.users()
    show(as_json, [user.as_data() for user in found], lambda target: render_users(target, found))


write_option = click.option("--write", is_flag=True, help="To write; else to read.")


@click.group("role")
def role_command() -> None:
    """Manage roles: what they may read and write at Kafka.

    A PERMISSION is view:NAME, stream:NAME, topic:NAME, prefix:TEXT, or just the name of a
    view, of a stream, or of the topic of one.
    """


@role_command.command("add")
@click.argument("name")
@click.argument("permissions", nargs=-1, metavar="[PERMISSION]...")
@click.option("--include", "includes", multiple=True, metavar="ROLE", help="Has its permissions.")
@click.option("--exclude", "excludes", multiple=True, metavar="ROLE", help="Nobody has both.")
@json_option
def add_role(
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


@role_command.command("delete")
@click.argument("name")
@json_option
def delete_role(name: str, as_json: bool) -> None:
    """Delete a role, and take it from all users."""
    with open_officer() as officer:
        done = officer.delete_role(name)
    show_done(as_json, done, f"deleted role {name}")


@role_command.command("allow")
@click.argument("name")
@click.argument("permission")
@write_option
@json_option
def allow(name: str, permission: str, write: bool, as_json: bool) -> None:
    """Add PERMISSION to a role."""
    with open_officer() as officer:
        done = officer.add_permission(name, permission, allow="write" if write else "read")
    show_done(as_json, done, f"role {name} has {permission}")


@role_command.command("revoke")
@click.argument("name")
@click.argument("permission")
@write_option
@json_option
def revoke(name: str, permission: str, write: bool, as_json: bool) -> None:
    """Remove PERMISSION from a role; whoever is reading by it stops."""
    with open_officer() as officer:
        done = officer.remove_permission(name, permission, allow="write" if write else "read")
    show_done(as_json, done, f"role {name} has {permission} no more")


@role_command.command("show")
@click.argument("name")
@json_option
def show_role(name: str, as_json: bool) -> None:
    """Show what a role allows, and who has it."""
    with open_officer() as officer:
        found = officer.role_status(name)
    show(as_json, found.as_data(), lambda target: render_role(target, found))


@role_command.command("list")
@json_option
def list_roles(as_json: bool) -> None:
    """List all roles."""
    with open_officer() as officer:
        found = officer.roles()
    show(as_json, [role.as_data() for role in found], lambda target: render_roles(target, found))
