"""The names of records and entries in messages: what the coordinator says and what a site answers.

`query.hello` carries HELLO both ways. `train` and `evaluate` carry EXCHANGE and one array record per tensor that the
method sends; the answer has one array record per upload, REPORT, NOTES, and measures of the models (columns.py).
"""

# records
HELLO = "hello"
EXCHANGE = "exchange"
REPORT = "report"  # numbers that the client's half of the method says of its training
NOTES = "notes"  # sentences about the site's own files
COUNTS = "counts"  # binned counts for the report
RESERVED = frozenset((HELLO, EXCHANGE, REPORT, NOTES, COUNTS, "pm", "gm", "nonzero", "temperature"))

STATISTICS = (
    ".statistics"  # a further record NAME.statistics: the buffers that go with a distribution or an upload
)

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
DATA_CHANGED = "data_changed"  # a run goes on, and the site's owner knows that its data are others now
LABELS = "labels"  # training examples of each class

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
