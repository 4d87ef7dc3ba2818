#!/bin/sh
# What the environment needs from the system: a Python with venv, and a Java 17.
#
#   system.sh python PYTHON    check that PYTHON can make virtual environments
#   system.sh java             print the home of a Java 17
#
# What is missing is installed where that is possible without asking (apt-get, as root or with a
# password-less sudo); otherwise it is said, with what to do, and the status is 1.
set -eu

JAVA_PACKAGE=openjdk-17-jre-headless

say() { printf '%s\n' "$*" >&2; }

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

can_install() {
    command -v apt-get >/dev/null 2>&1 || return 1
    [ "$(id -u)" = 0 ] || sudo -n true >/dev/null 2>&1
}

install_package() {
    say "installing $1 with apt-get"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get update -q >&2 &&
        as_root env DEBIAN_FRONTEND=noninteractive \
            apt-get install -y -q --no-install-recommends "$1" >&2
}

# ---- Python -----------------------------------------------------------------------------------

python_makes_environments() { "$1" -c 'import ensurepip, venv' >/dev/null 2>&1; }

check_python() {
    if ! command -v "$1" >/dev/null 2>&1; then
        say "missing: $1 is not on the PATH."
        say "Install Python 3.11 or newer, or name one: make env PYTHON=/path/to/python3"
        return 1
    fi
    if ! "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        say "missing: $1 is $("$1" --version 2>&1), Python 3.11 or newer is needed."
        say "Install one and name it: make env PYTHON=/path/to/python3.11"
        return 1
    fi
    python_makes_environments "$1" && return 0
    version=$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    if can_install && install_package "python$version-venv" && python_makes_environments "$1"; then
        return 0
    fi
    say "missing: $1 has no venv or no ensurepip, so it cannot make the environment .venv."
    say "On Debian and Ubuntu these are a package of their own: apt-get install python$version-venv"
    return 1
}

# ---- Java -------------------------------------------------------------------------------------

# Print the home of the given java if it is a Java 17.
home_if_17() {
    settings=$("$1" -XshowSettings:properties -version 2>&1) || return 1
    printf '%s\n' "$settings" | grep -q '^ *java.specification.version = 17$' || return 1
    printf '%s\n' "$settings" | sed -n 's/^ *java.home = //p'
}

find_java() {
    for candidate in "${JAVA_HOME:+$JAVA_HOME/bin/java}" "$(command -v java || true)" \
        /usr/lib/jvm/*/bin/java; do
        if [ -x "$candidate" ] && home_if_17 "$candidate"; then return 0; fi
    done
    return 1
}

provide_java() {
    find_java && return 0
    if can_install && install_package "$JAVA_PACKAGE" && find_java; then return 0; fi
    say "missing: a Java 17, which Spark runs on; neither JAVA_HOME, the PATH nor /usr/lib/jvm has one."
    say "On Debian and Ubuntu: apt-get install $JAVA_PACKAGE"
    say "Elsewhere install any JRE or JDK 17 and set JAVA_HOME to its folder."
    return 1
}

case "${1-}" in
python) check_python "$2" ;;
java) provide_java ;;
*) say "usage: system.sh python PYTHON | java"; exit 2 ;;
esac
