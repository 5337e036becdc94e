"""The tables of the papers, computed again: `yang2021` is Table 1 of Yang et al. (2021)."""
