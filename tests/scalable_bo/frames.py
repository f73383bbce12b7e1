"""Tables of studies that were made at different times."""

import pandas as pd

from scalable_bo.study.study import Study


def timeless(study: Study) -> pd.DataFrame:
    return study.to_dataframe().drop(columns=["asked", "told", "seconds"])
