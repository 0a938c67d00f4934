# Ends and removes a cluster when the program that started it has ended, however that was: the kernel
# closes the other end of the standard input.
#
#   $1  the cluster's directory. Everything that works for the cluster has its working directory
#       there: Patroni, etcd, and each process of a PostgreSQL server, in its data directory. So no
#       process number is remembered, which could have passed to a stranger.

dir=$1

# The processes whose working directory has a path like this. (`*` stands for slashes as well.)
workers() {
    find /proc/[0-9]*/cwd -maxdepth 0 -lname "$dir$1" | cut -d / -f 3
}

# The end of the program (or of its terminal) is what this is there for.
trap '' HUP INT QUIT TERM
cd /
cat >/dev/null

tries=0
while [ -e "$dir" ] && [ "$tries" -lt 100 ]; do
    # The lists are meant to be split into words. Patroni first: it starts servers again.
    # shellcheck disable=SC2046
    kill -KILL $(workers '/n?')
    # Servers then end by themselves, and return their shared memory to the system.
    # shellcheck disable=SC2046
    kill -CONT $(workers '/n?/data*') && kill -QUIT $(workers '/n?/data*')
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        [ -n "$(workers '/n?/data*')" ] || break
        sleep 0.3
    done
    while pids=$(workers '*') && [ -n "$pids" ]; do
        # shellcheck disable=SC2086
        kill -KILL $pids
        sleep 0.1
    done
    rm -rf "$dir" || sleep 0.2
    tries=$((tries + 1))
done
