"""The methods: one file or package each. Importing this package registers them all."""

from fozo.methods import (  # noqa: F401 - which registers them
    align,
    cazo,
    deyo,
    eata,
    equalise,
    foa,
    fozo,
    gain,
    lame,
    neo,
    noadapt,
    pea,
    sar,
    static,
    t3a,
    tent,
    zoa,
)  # fmt: skip
