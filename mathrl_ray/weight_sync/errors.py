"""What goes wrong between learner and generators. A file of its own, so that a driver that is told of it loads neither torch nor vLLM."""


class TransferError(RuntimeError):
    """A meeting or a transfer that failed; the message names the party that did not arrive, or what it said."""


class BlockError(TransferError):
    """A block of shared memory that cannot be loaded: of another version, half written, changed after it was written, or not there."""
