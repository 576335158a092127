"""Import paths of ROLL that are not here are resolved by compat.code, which nothing else imports."""

from roll.compat.code.names import install

install()
