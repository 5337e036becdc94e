"""The flat state of the learners without privacy: which place of the array holds what.

The whole state of one learner is one float64 array, because numba's dispatch costs more per array argument
than a step with nine features. Layout, with room for `cap` features::

    [0, HEADER)  scalars
    x[cap]       the packed record: scratch
    gradient[cap]: scratch
    w[cap]       iterate w_{j-1};  previous[cap]  w_{j-2};  averaged[cap]
                 ADAGRAD: previous[cap] has the sums of squared gradients, averaged[cap] is not used
    COLUMNS[cap] statistics of each feature, of linear learners: see `scaling`
    buffer       what the learner keeps of past records

The buffer of a linear learner has rows of ``2 + 2 ROOM`` cells: label, number of features (and a half, if
there are gaps among them), their places in ascending order, their values, NaN for a gap. CLASSES has two such
tables, that of the negatives first. FULL has none: its rows are in the blocks of `history`. A metric has rows
of ``1 + cap`` cells: label, then all features.

Counters, and addresses, are exact up to 2**53 as floats.
"""

from __future__ import annotations

D = 0  # features in use
CAP = 1
RECORDS = 2  # records learned, t
SIZE = 3  # rows that the buffer has room for (CLASSES: of each class)
POLICY = 4  # FIFO, RESERVOIR, RESERVOIR_REPLACE, FULL, CLASSES
FILLED = 5  # rows in use
NEXT = 6  # FIFO: row that is overwritten next
LOSS = 7
RATE = 8  # > 0: the factor of SCHEDULE; 0: the self-tuned steps
RADIUS = 9
L2 = 10
AVERAGE = 11  # 0: the last iterate is published; 1: the average weighted by the steps; 2: weighted by j
GRADIENTS = 12  # running sum of squared gradient norms
ETAS = 13  # running sum of the weights in the average: step sizes; j; or 1 for each step, where KEEP fades it
SEED = 14
POSITIVES = 15  # CLASSES: records of the positive class so far
TABLE = 16  # FULL: address of the table of blocks
BLOCKS = 17  # FULL: its length
WIDTH = 18  # parameter of the loss
PSD = 19  # metrics: whether W is kept positive semi-definite
SINGLE = 20  # FULL: rows are float32
LINK = 21  # whether labels are two classes, so that scores have probabilities (`link`)
INFORMATION = 22  # of which the link was learned
CENTRE = 23  # where its scores are
SPREAD = 24  # their standard deviation
OFFSET = 25  # log-odds at the centre
SLOPE = 26  # what they rise by in a standard deviation
KEEP = 27  # what is kept of the running sums from one record to the next; 0: all, for ever
SCALE = 28  # whether features are scaled by their running statistics
SCHEDULE = 29  # how steps of size RATE shrink: one of the four below
ROOM = 30  # features that a row of the buffer has room for
CENTRED = 31  # features with a centre other than 0, whose places are listed
ALIKE = 32  # whether all records so far had all features, which are dense numbers: COUNT is then not kept
START = 33  # ADAGRAD: what the sums of squares begin at
BEFORE = 34  # records of a model that was begun with, which the statistics of the features count
FADES_TO = (
    35  # what a value counts for when the spread of a column that holds it fades no more; 0: it fades on
)
HEADER = 36

INVERSE_SQRT = 0  # step j has size RATE / sqrt(j)
CONSTANT = 1  # RATE
INVERSE_TIME = 2  # RATE / (j + 1)
ADAGRAD = 3  # RATE / sqrt(sum of its squared gradients), for each weight
SAMPLED = 4  # RATE, times the records of the other class for each one in its sample (OAM)

NO_ROOM = -1  # what a kernel returns, with nothing changed, if the blocks of FULL are full
