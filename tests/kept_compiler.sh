#!/bin/sh
# kept_compiler.sh FOLDER COMPILER...: the compiler, once for each source and its options.
# What it made is kept in the folder: processes of trials build the same kernels again.
folder=$1
shift
source=
for word; do
  case $previous in -o) made=$word ;; esac
  case $word in *.c) source=$word ;; esac
  previous=$word
done
[ "$source" ] && [ "$made" ] || exec "$@"
key=$({ for word; do
  case $word in "$source" | "$made") ;; *) echo "$word" ;; esac
done; cat "$source"; } | sha256sum)
kept=$folder/${key%% *}
cp "$kept" "$made" 2>/dev/null && exit
"$@" && cp "$made" "$kept.$$" && mv "$kept.$$" "$kept"
