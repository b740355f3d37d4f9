"""Scripts that run on another machine for the file tools: POSIX `sh`; a search also needs `tar` and `xargs -0`.

They are used instead of SFTP because several files are replaced all or none, even if the connection is lost in between,
and because a search has to list a tree in one round trip.

Each script ends by itself when its input ends. The first argument is the directory that paths are relative to. Errors
are reported on standard error, with exit code 3.
"""

from __future__ import annotations

from typing import Final

from halter.toolbox.remote.command_script import GO

# Begin there, with the path of the second argument in $path.
_BEGIN: Final = (
    GO
    + r"""
fail() { echo "$*" >&2; exit 3; }
sum() {  # of what comes
  for each in cksum md5sum sha1sum; do
    command -v "$each" >/dev/null 2>&1 && { echo $("$each"); return; }
  done
  fail "that machine has neither cksum nor md5sum"
}
go_to "$1" || fail "no such directory: $1"
at_home "$2"
"""
)
_REGULAR: Final = r"""
[ -e "$path" ] || [ -L "$path" ] || { echo "No such file: $path" >&2; exit 2; }
[ -d "$path" ] && fail "$path is a directory"
[ -f "$path" ] || fail "$path is not a regular file"
[ -r "$path" ] || fail "$path is not readable"
"""

# Arguments: the directory, a file, how many bytes to skip, how many to output. The size of the file goes to standard
# error, followed by a checksum if there is a fifth argument. Exit code 2: there is no such file.
PIECE: Final = (
    _BEGIN
    + _REGULAR
    + r"""
stamp=
[ -z "$5" ] || stamp=$(sum <"$path") || exit 3
echo $(wc -c <"$path") $stamp >&2
tail -c "+$(($3+1))" <"$path" | head -c "$4"
"""
)

# Arguments: the directory, a file, a line. Outputs how many lines it has, and how many bytes are before that line.
LINES: Final = (
    _BEGIN
    + _REGULAR
    + r"""
lines=$(wc -l <"$path")
[ -n "$(tail -c 1 <"$path")" ] && lines=$((lines+1))
echo "$lines" $(head -n "$(($3-1))" <"$path" | wc -c)
"""
)

# Replaces several files: all, or none. Arguments: the directory, "", the number of bytes of input, and four for each
# file: its path; its expected checksum ("-": it does not exist, "*": any); how many of the bytes are its content ("-":
# delete it); a file whose permissions it gets, if it does not exist itself.
#
# The input is stored first: if it is incomplete, nothing is done. Then each new content is written beside its file.
# Then all are renamed, with signals ignored; if one rename fails, the others are undone.
REPLACE: Final = (
    _BEGIN
    + r"""
trap '' HUP PIPE
total=$3 n=0 begun= spool= at=0
shift 3
finish() {
  i=$n
  while [ "$i" -gt 0 ]; do
    eval "target=\$target_$i draft=\$draft_$i old=\$old_$i is=\$is_$i keep=\$keep_$i"
    if [ -n "$begun" ] && [ "$is" = done ]; then
      if [ -n "$old" ]; then mv -f "$old" "$target"; else rm -f "$target"; fi
    fi
    rm -f "$draft" "$old"
    [ -n "$keep" ] && {
      each=$(dirname "$target")
      while [ "$each" != "$keep" ] && rmdir "$each" 2>/dev/null; do each=$(dirname "$each"); done
    }
    i=$((i-1))
  done
  rm -f "$spool"
}
trap finish EXIT
trap 'exit 4' TERM INT
prepare() {  # a path, its stamp, its length, whose rights
  n=$((n+1))
  at_home "$1"
  target=$path draft= old= keep= is=
  [ -d "$target" ] && fail "$1 is a directory"
  if [ -L "$target" ]; then target=$(readlink -f "$target") || fail "$1 is a broken link"; fi
  [ -e "$target" ] && [ ! -f "$target" ] && fail "$1 is not a regular file"
  parent=$(dirname "$target")
  eval "target_$n=\$target draft_$n= old_$n= is_$n= keep_$n="
  if [ ! -d "$parent" ]; then
    keep=$parent
    while [ ! -e "$keep" ]; do keep=$(dirname "$keep"); done
    eval "keep_$n=\$keep"
    mkdir -p "$parent" || fail "cannot create the directory $parent"
  fi
  if [ -e "$target" ]; then
    [ -w "$target" ] || fail "$1 is read-only"
    now=
    [ "$2" = "*" ] || now=$(sum <"$target") || exit 3
    old=$(mktemp "$parent/.halter.XXXXXX") || fail "cannot write to the directory of $1"
    eval "old_$n=\$old"
    cp -p "$target" "$old" || fail "cannot copy $1"
  else
    now=-
  fi
  if [ "$2" != "*" ] && [ "$2" != "$now" ]; then
    fail "$1 was changed in the meantime; read it again"
  fi
  [ "$3" = - ] && return
  draft=$(mktemp "$parent/.halter.XXXXXX") || fail "cannot write to the directory of $1"
  eval "draft_$n=\$draft"
  if [ -n "$old" ]; then
    cp -p "$old" "$draft" || fail "cannot copy $1"
  elif [ -n "$4" ]; then
    at_home "$4"; cp -p "$path" "$draft" || fail "cannot copy $4"
  else
    chmod "$(umask -S | sed 's/x//g')" "$draft" 2>/dev/null || chmod 644 "$draft"
  fi
  tail -c "+$((at+1))" <"$spool" | head -c "$3" >"$draft"
  [ "$(wc -c <"$draft")" -eq "$3" ] || fail "cannot write $1: is the disk full?"
  at=$((at+$3))
}
spare=.
[ "$#" -gt 0 ] && { at_home "$1"; spare=$(dirname "$path"); }
while [ ! -d "$spare" ]; do spare=$(dirname "$spare"); done
spool=$(mktemp "$spare/.halter.XXXXXX") || fail "cannot write to $spare"
cat >"$spool"
[ "$(wc -c <"$spool")" -eq "$total" ] || exit 4
while [ "$#" -gt 0 ]; do prepare "$1" "$2" "$3" "$4"; shift 4; done
trap '' TERM INT
begun=1 i=1
while [ "$i" -le "$n" ]; do
  eval "target=\$target_$i draft=\$draft_$i"
  if [ -n "$draft" ]; then mv -f "$draft" "$target"; else rm -f "$target"; fi || fail "cannot replace $target"
  eval "is_$i=done"
  i=$((i+1))
done
begun= i=1
while [ "$i" -le "$n" ]; do
  eval "[ -n \"\$old_$i\" ]" && echo replaced || echo made
  eval "keep_$i="
  i=$((i+1))
done
"""
)

# Arguments: the directory, where to search, the maximum size of a file, the maximum size of the output. Outputs the
# kind and, of a directory, the files below it, each followed by a null character: first those that can be searched,
# then, after an empty one, those that are too large. Errors are on standard error.
LIST: Final = (
    _BEGIN
    + r"""
[ -e "$path" ] || { echo "no such file or directory: $path" >&2; exit 2; }
if [ ! -d "$path" ]; then printf 'file\0'; exit 0; fi
printf 'directory\0'
cd "$path" || fail "cannot enter $path"
{
  LC_ALL=C find . -type d -name .git -prune -o -type f ! -size "+$3c" -print0
  printf '\0'
  LC_ALL=C find . -type d -name .git -prune -o -type f -size "+$3c" -print0 2>/dev/null
} | head -c "$4"
exit 0
"""
)

# Arguments: the directory, where to search, a text. Lists those of the files on standard input that contain it.
WITH_TEXT: Final = (
    _BEGIN
    + r"""
cd "$path" || exit 3
tr '\n' '\0' | LC_ALL=C xargs -0 grep -lF -e "$3" /dev/null 2>/dev/null
case $? in 0|123) exit 0 ;; *) exit 3 ;; esac  # 123: one of them had none, or could not be read
"""
)

# Arguments: the directory, where to search, the maximum size of the output. Outputs an archive of the files on standard
# input, one name on each line; several archives after each other if there are many files.
ARCHIVE: Final = (
    _BEGIN
    + r"""
cd "$path" || exit 3
command -v tar >/dev/null 2>&1 || fail "a search needs tar, which that machine does not have"
tr '\n' '\0' | xargs -0 tar -cf - 2>/dev/null | head -c "$3"
exit 0
"""
)
