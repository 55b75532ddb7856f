"""All commands in one place; each lives in a module of its own."""

from __future__ import annotations

import typer

from ml_udf.cli import bulk, postgres, token, workers
from ml_udf.cli.deploy import deploy
from ml_udf.cli.doctor import doctor
from ml_udf.cli.export_model import export_model
from ml_udf.cli.import_model import import_model
from ml_udf.cli.jobs import jobs
from ml_udf.cli.pipeline import pipeline
from ml_udf.cli.residency import residency
from ml_udf.cli.score import score
from ml_udf.cli.serve import serve
from ml_udf.cli.share import share
from ml_udf.cli.simulate import simulate
from ml_udf.cli.sql import sql
from ml_udf.cli.train_actor import train_actor_command
from ml_udf.cli.try_model import try_model
from ml_udf.cli.variants import variants
from ml_udf.cli.wish import wish

__all__ = ["app"]

app = typer.Typer(
    help="Machine learning inside SQL, for PostgreSQL and DuckDB.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,  # tokens are among them, and older releases of typer show them
)
app.command(
    context_settings={
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "help_option_names": [],  # --help is the server's
    }
)(serve)
app.command()(sql)
app.command("import")(import_model)
app.command("try")(try_model)
app.command("export")(export_model)
app.command()(score)
app.command()(jobs)
app.command()(deploy)
app.command()(residency)
app.command()(pipeline)
app.command()(wish)
app.command()(variants)
app.command()(simulate)
app.command("train-actor")(train_actor_command)
app.command()(doctor)
app.command()(share)
app.command()(token.login)
app.add_typer(bulk.app, name="bulk")
app.add_typer(token.app, name="token")
app.add_typer(workers.app, name="workers")
app.add_typer(postgres.app, name="postgres")
