"""Exports: the integrations of a job, and a row for each that says who sends its metrics there.

Revision ID: 0006
Revises: 0005
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    integrations = postgresql.JSONB(astext_type=sa.Text())
    op.add_column(
        "jobs", sa.Column("integrations", integrations, server_default=sa.text("'[]'::jsonb"), nullable=False)
    )
    op.create_table(
        "exports",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("lease_expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("due_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("failing_since", sa.DateTime(timezone=True), nullable=True),
        sa.Column("failures", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("error_code", sa.Text(), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("job_id", "target", name=op.f("pk_exports")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_exports_job_id")),
    )
    op.create_index("ix_exports_due", "exports", ["due_at"], postgresql_where=sa.text("finished_at IS NULL"))


def downgrade() -> None:
    op.drop_table("exports")
    op.drop_column("jobs", "integrations")
