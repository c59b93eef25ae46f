"""Grading tasks: reward code that the API has run, and which of them are reports of probes.

Revision ID: 0003
Revises: 0002
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    json, moment = postgresql.JSONB(astext_type=sa.Text()), sa.DateTime(timezone=True)
    op.create_table(
        "grading_tasks",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("request", json, nullable=False),
        sa.Column("answer", json, nullable=True),
        sa.Column("error", json, nullable=True),
        sa.Column("attempt", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("created_at", moment, server_default=sa.text("clock_timestamp()"), nullable=False),
        sa.Column("hinted_at", moment, nullable=True),
        sa.Column("lease_expires_at", moment, nullable=True),
        sa.Column("finished_at", moment, nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_grading_tasks")),
    )
    due = sa.text("status IN ('queued', 'running')")
    op.create_index("ix_grading_tasks_due", "grading_tasks", ["hinted_at"], postgresql_where=due)
    op.create_index("ix_grading_tasks_finished_at", "grading_tasks", ["finished_at"])
    op.create_table(
        "reward_probes",
        sa.Column("task_id", sa.Text(), nullable=False),
        sa.Column("version_id", sa.Text(), nullable=False),
        sa.Column("file_id", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("task_id", name=op.f("pk_reward_probes")),
        sa.ForeignKeyConstraint(["task_id"], ["grading_tasks.id"], name=op.f("fk_reward_probes_task_id")),
        sa.ForeignKeyConstraint(["version_id"], ["reward_versions.id"], name=op.f("fk_reward_probes_version_id")),
        sa.ForeignKeyConstraint(["file_id"], ["files.id"], name=op.f("fk_reward_probes_file_id")),
    )
    op.create_index("ix_reward_probes_version_id_file_id", "reward_probes", ["version_id", "file_id"])


def downgrade() -> None:
    op.drop_table("reward_probes")
    op.drop_table("grading_tasks")
