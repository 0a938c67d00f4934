# Removes a throw-away cluster once nobody uses it any more.
#
#   $1  the cluster's directory
#   $2  the directory of pg_isready
#   $3  seconds to wait for another user, or "now" to remove the cluster at once
#
# Every user holds the pipe "users" open for writing. The kernel closes it however the user ends,
# and no other process can be mistaken for the user, as could happen with process numbers.

dir=$1
bin=$2
linger=$3

# Processes of a server work in its data directory. One that was stopped answers nothing, and does not end.
resume_server() {
    # The list is meant to be split into words.
    # shellcheck disable=SC2046
    kill -CONT $(find /proc/[0-9]*/cwd -maxdepth 0 -lname "$dir/data*" | cut -d / -f 3)
}

stop_server() {
    resume_server
    # Next to the socket, and so still there when only the data directory was removed.
    for lock in "$dir"/.s.PGSQL.*.lock; do
        [ -r "$lock" ] || continue
        { read -r pid && read -r _ && read -r _ && read -r port; } <"$lock" || continue
        # The process number may have passed to a stranger. What answers on the cluster's socket
        # (0: ready, 1: busy) is its server.
        "$bin/pg_isready" -q -t 3 -h "$dir" -p "$port"
        [ $? -le 1 ] || continue
        kill -QUIT "$pid"
        for _ in 1 2 3 4 5 6 7 8 9 10; do
            [ -e "$lock" ] && kill -0 "$pid" || continue 2
            sleep 1
        done
        kill -KILL "$pid"
    done
}

remove() {
    # A program that was starting the cluster may still put files there.
    tries=0
    while [ -e "$dir" ] && [ "$tries" -lt 60 ]; do
        stop_server
        rm -rf "$dir" || sleep 1
        tries=$((tries + 1))
    done
    # The directory of all the clusters goes with the last of them.
    rmdir "${dir%/*}"
}

watch() {
    # Opening one end waits for the other, and nobody may ever come: so open both, and leave the
    # founder a few seconds to open its own.
    exec 4<>"$dir/users"
    exec 3<"$dir/users"
    sleep 5
    exec 4>&-

    idle=0
    while :; do
        # Ends when no user is left, at once when there is none. A user writes a line when it comes.
        [ -z "$(cat <&3)" ] || idle=0
        [ "$idle" -lt "$linger" ] || break
        sleep 1
        idle=$((idle + 1))
    done

    # From here on nobody can come; wait for those who came since the last look.
    mv "$dir/users" "$dir/leaving"
    cat <&3
    exec 3<&-
}

if [ "$linger" != now ]; then
    (umask 077 && mkfifo "$dir/users") || exit 1
fi
(
    # The end of a run (or of its terminal) is what the watchdog is there for.
    trap '' HUP INT QUIT TERM
    cd /
    [ "$linger" = now ] || watch
    remove
) </dev/null >/dev/null 2>&1 &
