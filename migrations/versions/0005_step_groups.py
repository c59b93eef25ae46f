"""How the groups of every step came out, by prompt.

Revision ID: 0005
Revises: 0004
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "step_groups",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("rows", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "step", name=op.f("pk_step_groups")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_step_groups_job_id")),
    )


def downgrade() -> None:
    op.drop_table("step_groups")
