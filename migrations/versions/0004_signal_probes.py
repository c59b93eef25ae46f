"""Signal probes: rows of `jobs` that sample and grade without training, and what they found.

Revision ID: 0004
Revises: 0003
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

WRITTEN_FOR_PROBES = ("signal_probes", "inline_rewards", "job_attempts", "job_events")


def upgrade() -> None:
    op.add_column("jobs", sa.Column("kind", sa.Text(), server_default=sa.text("'grpo'"), nullable=False))
    op.create_table(
        "signal_probes",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("prompts", sa.Integer(), nullable=False),
        sa.Column("samples", sa.Integer(), nullable=False),
        sa.Column("report", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_signal_probes")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_signal_probes_job_id")),
    )


def downgrade() -> None:
    for table in WRITTEN_FOR_PROBES:
        op.execute(f"DELETE FROM {table} USING jobs WHERE job_id = jobs.id AND kind = 'signal_probe'")  # noqa: S608
    op.execute("DELETE FROM jobs WHERE kind = 'signal_probe'")
    op.drop_table("signal_probes")
    op.drop_column("jobs", "kind")
