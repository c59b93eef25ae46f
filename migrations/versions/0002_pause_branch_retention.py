"""Pause, branch, retention: wishes and origins on jobs, pins on checkpoints, prompts counted on files.

Revision ID: 0002
Revises: 0001
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("files", sa.Column("distinct_prompts", sa.Integer(), nullable=True))
    op.execute("UPDATE files SET distinct_prompts = rows")  # nobody counted: no prompt repeats, as far as is known
    op.add_column("jobs", sa.Column("pause_requested_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("jobs", sa.Column("branched_from", sa.Text(), nullable=True))
    op.add_column("jobs", sa.Column("activity", postgresql.JSONB(astext_type=sa.Text()), nullable=True))
    op.add_column("jobs", sa.Column("furthest_durable_step", sa.Integer(), nullable=True))
    op.execute("UPDATE jobs SET furthest_durable_step = durable_step")
    op.add_column("job_attempts", sa.Column("resume_audit", postgresql.JSONB(astext_type=sa.Text()), nullable=True))
    op.add_column("checkpoints", sa.Column("pinned", sa.Boolean(), server_default=sa.text("false"), nullable=False))
    op.add_column("checkpoints", sa.Column("collected_at", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    op.drop_column("checkpoints", "collected_at")
    op.drop_column("checkpoints", "pinned")
    op.drop_column("job_attempts", "resume_audit")
    op.drop_column("jobs", "furthest_durable_step")
    op.drop_column("jobs", "activity")
    op.drop_column("jobs", "branched_from")
    op.drop_column("jobs", "pause_requested_at")
    op.drop_column("files", "distinct_prompts")
