#!/usr/bin/env bash
# watched.sh LOG COMMAND...: runs a long command with its output in a file, and shows how far its build is ("[12/203]", as ninja
# writes it): in one line that moves on a terminal, else once a minute. When the command fails, the end of the log is shown.
set -uo pipefail
log=$1
shift

"$@" > "$log" 2>&1 &
command=$!
trap 'kill "$command" 2> /dev/null' INT TERM

# A terminal's line is rewritten every two seconds.
if [ -t 1 ]; then pause=2 begin='\r    ' end=''; else pause=60 begin='    ' end='\n'; fi
shown=
said=$SECONDS
while kill -0 "$command" 2> /dev/null; do
  sleep 0.5
  [ $((SECONDS - said)) -ge $pause ] || continue
  said=$SECONDS
  step=$(tail -c 4000 "$log" | grep -oE '\[[0-9]+/[0-9]+\]' | tail -n 1)
  if [ -n "$step" ] && [ "$step" != "$shown" ]; then
    printf "${begin}%s${end}" "$step"
    shown=$step
  fi
done
if [ -t 1 ] && [ -n "$shown" ]; then printf '\r              \r'; fi

wait "$command"
status=$?
if [ $status -ne 0 ]; then
  tail -n 80 "$log"
  printf '==> failed; the whole log is %s\n' "$log"
fi
exit $status
