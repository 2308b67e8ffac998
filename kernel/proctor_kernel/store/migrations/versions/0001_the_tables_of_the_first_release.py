"""The tables of the first release."""

import sqlalchemy as sa
from alembic import op

from proctor_kernel.store import positions

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "agents",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("webhook_url", sa.Text(), nullable=True),
        sa.Column("secret", sa.Text(), nullable=False),
        sa.Column("lease_seconds", sa.Integer(), nullable=True),
        sa.Column("registered_at", sa.BigInteger(), nullable=False),
        sa.Column("description", sa.Text(), nullable=True),
        sa.Column("input_schema", sa.Text(), nullable=True),
        sa.Column("output_schema", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "announcements",
        sa.Column("approval_id", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("approval_id"),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("scopes", sa.Text(), nullable=False),
        sa.Column("groups", sa.Text(), nullable=False),
        sa.Column("token_hash", sa.String(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "approvals",
        sa.Column("approval_id", sa.String(), nullable=False),
        sa.Column("execution_id", sa.String(), nullable=False),
        sa.Column("step_id", sa.String(), nullable=False),
        sa.Column("agent_id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("args", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("rule_ids", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("gates", sa.Text(), nullable=False),
        sa.Column("votes", sa.Text(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("requested_at", sa.BigInteger(), nullable=False),
        sa.Column("decided_by", sa.String(), nullable=False),
        sa.Column("decided_at", sa.BigInteger(), nullable=True),
        sa.Column("rationale", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("approval_id"),
    )
    with op.batch_alter_table("approvals", schema=None) as batch_op:
        batch_op.create_index("approvals_execution", ["execution_id"], unique=False)
        batch_op.create_index("approvals_status", ["status", "expires_at"], unique=False)

    op.create_table(
        "bundles",
        sa.Column("agent_id", sa.String(), nullable=False),
        sa.Column("bundle", sa.Text(), nullable=False),
        sa.Column("set_by", sa.String(), nullable=False),
        sa.Column("set_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("agent_id"),
    )
    op.create_table(
        "checkpoints",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("signed_at", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("key_id", sa.String(), nullable=False),
        sa.Column("signature", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("number"),
    )
    op.create_table(
        "dispatches",
        sa.Column("execution_id", sa.String(), nullable=False),
        sa.Column("agent_id", sa.String(), nullable=False),
        sa.Column("dispatch_id", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("due_at", sa.BigInteger(), nullable=True),
        sa.Column("lease_micros", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("execution_id"),
    )
    with op.batch_alter_table("dispatches", schema=None) as batch_op:
        batch_op.create_index("dispatches_due", ["due_at"], unique=False)

    op.create_table(
        "events",
        sa.Column("execution_id", sa.String(), nullable=False),
        sa.Column("event_seq", sa.Integer(), nullable=False),
        sa.Column("type", sa.String(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("occurred_at", sa.BigInteger(), nullable=False),
        sa.Column("hash", sa.String(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("execution_id", "event_seq"),
    )
    with op.batch_alter_table("events", schema=None) as batch_op:
        batch_op.create_index("events_position", ["position"], unique=False)
    if op.get_bind().dialect.name == "postgresql":
        for statement in positions.FROM_COMMITS:
            op.execute(statement)

    op.create_table(
        "executions",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("agent_id", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("input", sa.Text(), nullable=False),
        sa.Column("output", sa.Text(), nullable=True),
        sa.Column("left", sa.Text(), nullable=True),
        sa.Column("failure_reason", sa.Text(), nullable=False),
        sa.Column("session", sa.String(), nullable=True),
        sa.Column("parent_execution_id", sa.String(), nullable=True),
        sa.Column("idempotency_key", sa.String(), nullable=True),
        sa.Column("spawned_by_execution", sa.String(), nullable=True),
        sa.Column("spawned_by_step", sa.String(), nullable=True),
        sa.Column("created_by", sa.String(), nullable=True),
        sa.Column("on_behalf_of", sa.String(), nullable=True),
        sa.Column("forked_from", sa.String(), nullable=True),
        sa.Column("fork_seq", sa.Integer(), nullable=False),
        sa.Column("restoration", sa.Text(), nullable=True),
        sa.Column("bundle", sa.Text(), nullable=True),
        sa.Column("deadline_at", sa.BigInteger(), nullable=True),
        sa.Column("tally", sa.Text(), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("passed_over", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=True),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("executions", schema=None) as batch_op:
        batch_op.create_index("executions_agent", ["agent_id", "id"], unique=False)
        batch_op.create_index("executions_deadline", ["deadline_at"], unique=False)
        batch_op.create_index("executions_session", ["session", "id"], unique=False)
        batch_op.create_index("executions_spawned_by", ["spawned_by_execution"], unique=False)
        batch_op.create_index("executions_status", ["status"], unique=False)

    op.create_table(
        "forgotten",
        sa.Column("execution_id", sa.String(), nullable=False),
        sa.Column("forgotten_at", sa.BigInteger(), nullable=False),
        sa.Column("key_id", sa.String(), nullable=False),
        sa.Column("signature", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("execution_id"),
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("agent_id", sa.String(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("execution_id", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("agent_id", "key"),
    )
    op.create_table(
        "notes",
        sa.Column("execution_id", sa.String(), nullable=False),
        sa.Column("dispatch_id", sa.String(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("step_id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("args_hash", sa.String(), nullable=False),
        sa.Column("occurrence", sa.Integer(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=True),
        sa.Column("parked", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("execution_id", "dispatch_id", "attempt", "ordinal"),
    )
    op.create_table(
        "rate_tokens",
        sa.Column("bucket", sa.String(), nullable=False),
        sa.Column("holder", sa.String(), nullable=False),
        sa.Column("taken_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("bucket", "holder"),
    )
    op.create_table(
        "rulesets",
        sa.Column("hash", sa.String(), nullable=False),
        sa.Column("files", sa.Text(), nullable=False),
        sa.Column("in_force_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("hash"),
    )
    op.create_table(
        "session_turns",
        sa.Column("session", sa.String(), nullable=False),
        sa.Column("execution_id", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("session"),
    )
    op.create_table(
        "refusals",
        sa.Column("sink", sa.String(), nullable=False),
        sa.Column("execution_id", sa.String(), nullable=False),
        sa.Column("event_seq", sa.Integer(), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("refused_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("sink", "execution_id", "event_seq"),
    )
    op.create_table(
        "sinks",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("execution_id", sa.String(), nullable=False),
        sa.Column("event_seq", sa.Integer(), nullable=False),
        sa.Column("shipped_to", sa.BigInteger(), nullable=False),
        sa.Column("holder", sa.String(), nullable=False),
        sa.Column("held_until", sa.BigInteger(), nullable=False),
        sa.Column("failing_since", sa.BigInteger(), nullable=True),
        sa.Column("error", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "steps",
        sa.Column("execution_id", sa.String(), nullable=False),
        sa.Column("step_id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("args", sa.Text(), nullable=False),
        sa.Column("args_hash", sa.String(), nullable=False),
        sa.Column("occurrence", sa.Integer(), nullable=False),
        sa.Column("idempotency", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("proposed_seq", sa.Integer(), nullable=False),
        sa.Column("decision", sa.String(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("rule_ids", sa.Text(), nullable=False),
        sa.Column("ruleset", sa.String(), nullable=False),
        sa.Column("policy_micros", sa.Integer(), nullable=False),
        sa.Column("shadow", sa.Text(), nullable=False),
        sa.Column("approval_id", sa.String(), nullable=True),
        sa.Column("child", sa.String(), nullable=True),
        sa.Column("resources", sa.Text(), nullable=False),
        sa.Column("result", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("input_tokens", sa.Integer(), nullable=True),
        sa.Column("output_tokens", sa.Integer(), nullable=True),
        sa.Column("trace_id", sa.String(), nullable=False),
        sa.Column("span_id", sa.String(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=True),
        sa.Column("completed_at", sa.BigInteger(), nullable=True),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("execution_id", "step_id"),
    )


def downgrade() -> None:
    """Drop the tables."""
    op.drop_table("steps")
    op.drop_table("sinks")
    op.drop_table("refusals")
    op.drop_table("session_turns")
    op.drop_table("rulesets")
    op.drop_table("rate_tokens")
    op.drop_table("notes")
    op.drop_table("idempotency_keys")
    op.drop_table("forgotten")
    with op.batch_alter_table("executions", schema=None) as batch_op:
        batch_op.drop_index("executions_status")
        batch_op.drop_index("executions_spawned_by")
        batch_op.drop_index("executions_session")
        batch_op.drop_index("executions_deadline")
        batch_op.drop_index("executions_agent")

    op.drop_table("executions")
    op.drop_table("events")
    if op.get_bind().dialect.name == "postgresql":
        op.execute(positions.DROP)
    with op.batch_alter_table("dispatches", schema=None) as batch_op:
        batch_op.drop_index("dispatches_due")

    op.drop_table("dispatches")
    op.drop_table("checkpoints")
    op.drop_table("bundles")
    with op.batch_alter_table("approvals", schema=None) as batch_op:
        batch_op.drop_index("approvals_execution")
        batch_op.drop_index("approvals_status")

    op.drop_table("approvals")
    op.drop_table("api_keys")
    op.drop_table("announcements")
    op.drop_table("agents")
