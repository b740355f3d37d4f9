r"""Scripts that run on the other side of an SSH connection: POSIX `sh`, because nothing else can be relied on.

`WATCH` runs one command, in a session of its own, and supervises it:

- Its standard input is the control channel. A line "kSECONDS" ends the command, and so does the end of the input, which
  is how a lost connection appears on that side. A connection may also go silent unnoticed: so there is a heartbeat, and
  when it is missing for too long the command is ended, too. (Not if the only shell has a `read` without a timeout.)
- It reports on standard error, in lines that start with "halter". The output of the command, both streams in order, is
  on standard output.
- When the command has ended, its remaining processes are ended as well: its process group and session and, where there
  is /proc, processes that left them, by a marker in their environment. Then it checks again, and reports "gone" or the
  processes that are left.

A command may supervise itself: then the control channel is its standard input, it has to end when that ends, and it is
given the marker and the longest silence.

A race: the command ends by itself while the connection breaks. The reader is ended first, and the process that waits
for the command cleans up, so exactly one does.
"""

from __future__ import annotations

from typing import Final

# Go to a directory: from the user's own, if it is not absolute.
GO: Final = r"""
at_home() { case $1 in "~"|"~/"*) path=$HOME${1#"~"} ;; -*) path=./$1 ;; *) path=$1 ;; esac; }
go_to() { at_home "$1"; cd "${path:-.}" 2>/dev/null; }
"""

# The remaining processes: by the group and session of process $pid (if there is one), which are the third and fourth
# number after the name in its stat, and by the mark. Zombies do not count.
#
# One look may miss a process: while it executes another program it has no environment, and one that was just started is
# in no list. So nobody is left only if no process was in the middle of an exec when we looked, and no other has begun,
# or begun another program, from before the look until after it. Programs differ in the addresses of their environment,
# the 48th and 49th value in stat, which are 0 during an exec. The 7th has the flags; kernel threads and processes that
# exit have some of 2097156. Five looks more at most, as others may begin all the time.
REMAINING: Final = r"""
say() { printf 'halter %s\n' "$*" >&2; }
look() {
  if [ -r /proc/self/stat ]; then
    [ -n "$pid" ] && sed -n \
      -e "s/^\([0-9]*\) (.*) [^ZX] [0-9]* $pid [0-9]* .*/\1/p" \
      -e "s/^\([0-9]*\) (.*) [^ZX] [0-9]* [0-9]* $pid .*/\1/p" /proc/[0-9]*/stat 2>/dev/null
    grep -ls "$mark=" /proc/[0-9]*/environ 2>/dev/null | sed 's/[^0-9]//g'
  elif [ -n "$group" ]; then
    kill -0 "-$group" 2>/dev/null && echo "-$group"
  fi
  :
}
stat_of() { { read -r line <"/proc/$1/stat"; } 2>/dev/null && stat=${line##*) }; }
own_session() { stat_of $$ && set -- $stat && echo "$4"; }
programs() {
  sed -n 's/^\([0-9]*\) (.*) [^ZX] [0-9]* [0-9]* \([0-9]*\)\( [^ ]*\)\{43\} \([^ ]* [^ ]*\) .*/\1 \2 \4/p' \
    /proc/[0-9]*/stat 2>/dev/null | grep -v "^[0-9]* $session "
}
is_in_exec() {
  for each in $(grep -Ls . /proc/[0-9]*/environ 2>/dev/null | sed 's/[^0-9]//g'); do
    stat_of "$each" || continue
    set -- $stat
    [ "${49}" = 0 ] && [ "$(($7 & 2097156))" = 0 ] && return 0
  done
  return 1
}
members() {
  looks=0 session=$(own_session)
  while before=$(programs); found=$(look); [ -z "$found" ] && [ "$looks" -lt 5 ]; do
    if is_in_exec; then nap; else programs | grep -qvxFe "$before" || break; fi
    looks=$((looks+1))
  done
  [ -z "$found" ] || printf '%s\n' $found
}
nap() { sleep 0.05 2>/dev/null || sleep 1; }
end() {
  left=$(members)
  if [ -n "$left" ]; then
    kill -TERM $left 2>/dev/null; kill -CONT $left 2>/dev/null
    n=0
    while left=$(members); [ -n "$left" ] && [ "$n" -lt "$ticks" ]; do nap; n=$((n+1)); done
    n=0
    while left=$(members); [ -n "$left" ] && [ "$n" -lt 40 ]; do kill -KILL $left 2>/dev/null; nap; n=$((n+1)); done
  fi
}
tell_end() { if [ -n "$left" ]; then say left $left; else say gone; fi; }
"""

# Runs the script that is its $0 with bash, whose `read` has a timeout, or with sh.
BEST: Final = 'command -v bash >/dev/null 2>&1 && exec bash -c "$0" "$@"; exec sh -c "$0" "$@"'

# Arguments: the mark, the directory, whether it takes input (1) or keeps watch (2), the grace, the grace in twentieths
# of a second, how many seconds without a heartbeat are too many, the number of variables. Then lines of input: the
# command, the variables.
WATCH: Final = (
    GO
    + REMAINING
    + r"""
mark=$1 dir=$2 input=$3 grace=$4 ticks=$5 silence=$6 count=$7
shift 7
unpack() { IFS= read -r line || exit 1; value=$(printf '%bx' "$line"); value=${value%x}; }
unpack; command=$value
go_to "$dir" || { say "error no such directory: $dir"; exit 127; }
say "in $(pwd -P)"
tmp= from=/dev/null
if [ "$input" = 1 ]; then
  tmp=$(mktemp -d "${TMPDIR:-/tmp}/halter.XXXXXX") && mkfifo "$tmp/in" || { say "error cannot make a pipe"; exit 127; }
  from=$tmp/in
fi
new=
if command -v setsid >/dev/null 2>&1; then new=setsid; else set -m; fi
shell=sh
command -v bash >/dev/null 2>&1 && shell=bash
run='eval "$1"'
[ "$input" = 0 ] && run='trap "printf \"halter cwd %s\n\" \"\$(pwd -P)\" >&3" EXIT; eval "$1"'
n=0
while [ "$n" -lt "$count" ]; do unpack; set -- "$@" "$value"; n=$((n+1)); done
exec 3>&2 5<&0
(
  for each; do export "$each"; done
  export "$mark=1"
  if [ "$input" = 2 ]; then
    export HALTER_WATCH="$silence $mark"
    exec <&5
  else
    exec <"$from"
  fi
  exec $new "$shell" -c "$run" "$shell" "$command" 2>&1 5<&-
) &
pid=$! group=$!
set +m
reader=
[ "$input" = 2 ] || {
(
  trap '' HUP PIPE INT
  [ -n "$tmp" ] && exec 4>"$tmp/in"
  patience=
  echo | { read -r -t 1 line; } 2>/dev/null && patience="-t $silence"
  while IFS= read -r $patience line <&5; do
    case $line in
      e) exec 4>&- ;;
      k*) grace=${line#k}; break ;;
    esac
  done
  s=
  trap '[ -n "$s" ] && kill "$s"; exit 0' TERM
  # If it has no group of its own, the command itself is signalled, and the rest is ended by the mark.
  kill -TERM "-$pid" || kill -TERM "$pid"
  kill -CONT "-$pid" || kill -CONT "$pid"
  sleep "$grace" & s=$!
  wait "$s"
  kill -KILL "-$pid" || kill -KILL "$pid"
) >/dev/null 2>&1 3>&- &
reader=$!
}
trap '' HUP PIPE INT TERM
exec 5<&- 3>&-
say "pid $pid $tmp"
wait "$pid"; code=$?
say "exit $code"
[ -n "$reader" ] && { kill "$reader" 2>/dev/null; wait "$reader" 2>/dev/null; }
end
# Releases a process that is still about to write to the pipe: it can open it now, and then has no reader.
[ -n "$tmp" ] && { exec 6<>"$tmp/in"; rm -rf "$tmp"; exec 6<&-; }
tell_end
exit "$code"
"""
)

# Arguments: the mark, the process group, the grace in twentieths of a second. For when the connection was lost: by now
# another process may have the group's number, so where there is /proc only the mark counts.
CHECK: Final = (
    REMAINING
    + r"""
mark=$1 group=$2 ticks=$3 pid=
end
tell_end
"""
)

# Arguments: the pipe of a command that takes input, and its mark: if it does not read, the writer ends with it.
FEED: Final = r"""
[ -p "$1" ] || exit 3
export "$2=1"
exec sh -c 'exec cat >"$1"' halter "$1"
"""


def packed(text: str) -> bytes:
    r"""One line of input that `printf %b` turns into *text* again."""
    if "\0" in text:
        raise ValueError("a command or variable cannot contain null characters")
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return escaped.encode(errors="surrogateescape") + b"\n"
