"""How Alembic runs our revisions: on the connection, and in the transaction, that it is given."""

from alembic import context

from proctor_kernel.store.statements import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    render_as_batch=True,
)
context.run_migrations()
