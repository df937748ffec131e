"""The names of records and entries in messages: what the coordinator says and what a site answers.

`query.hello` carries HELLO both ways. `train` and `evaluate` carry EXCHANGE and one array record per tensor that the
method sends; the answer has one array record per upload, REPORT, NOTES, and measures of the models (columns.py). With
secure sums (secure.py) SECURE goes with them, the answer has MASKED and NOTES alone, and `query.unmask` follows.
"""

# records
HELLO = "hello"
EXCHANGE = "exchange"
REPORT = "report"  # numbers that the client's half of the method says of its training
NOTES = "notes"  # sentences about the site's own files, and why it does not train (REFUSAL)
COUNTS = "counts"  # binned counts for the report
CONFORMAL = ("conformal_coverage", "conformal_size", "conformal_width")  # numbers of each model
SECURE = "secure"  # of a secure sum: who takes part in it, and by which keys
MASKED = "masked"  # arrays: what a site adds to it
UNMASK = "unmask"  # who is left, so that masks can be taken off the sum
RESERVED = frozenset(
    (
        *(HELLO, EXCHANGE, REPORT, NOTES, COUNTS, SECURE, MASKED, UNMASK),
        *("pm", "gm", "nonzero", "temperature", *CONFORMAL),
    )
)

STATISTICS = (
    ".statistics"  # a further record NAME.statistics: the buffers that go with a distribution or an upload
)

BODY = "body"  # a tensor: the plain weights beside a distribution over the others

# of HELLO as the coordinator says it, and of EXCHANGE
VERSION = "version"
SETTINGS = "settings"  # JSON: every setting of the run
AGREED = "agreed"  # JSON: what all sites have agreed on

# of HELLO as a site answers it
SITE = "site"
ERROR = "error"  # why this site cannot take part, in words
N_TRAIN = "n_train"
N_TEST = "n_test"
N_VALIDATION = "n_validation"  # where training data are held out
INPUT_SHAPE = "input_shape"
CLASSES = "classes"
CLAIM = "claim"  # JSON: what the site brings into the agreement
FINGERPRINT = "fingerprint"  # of the model's parameters: names, shapes, what is frozen
GROUP = "group"  # the site's true group, or -1
PARTITIONS = "partitions"
INSTALLED = "installed"  # the version of fedbayes at a real site
DATA_CHANGED = "data_changed"  # a run goes on, and the site's owner knows that its data are others now
LABELS = "labels"  # training examples of each class
KEY = "key"  # X25519, of this site in a secure sum, in hexadecimal digits …
PROOF = "proof"  # … and JSON that shows whose it is

# of EXCHANGE
RUN = "run"
UUID = "uuid"
ROUND = "round"
TRAIN = "train"
UPLOAD = "upload"
EVALUATE = "evaluate"
CLOSING = "closing"  # the run ends with this exchange: models made from what is received are kept

# of REPORT
CLUSTER = "cluster"
UNCERTAINTY = "uncertainty"
EPSILON = "epsilon"  # what of its privacy a site has spent, where single examples are private

# of NOTES
REFUSAL = "refusal"
