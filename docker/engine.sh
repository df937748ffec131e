# Sourced by docker/test: an engine, Compose and the base image, had from wherever this machine can have them.
#
# A running engine is used as it is. Otherwise root on Debian gets a private, throw-away dockerd in $WORK, installed
# with apt-get; where no image registry answers, the base image is made from Debian packages. Whatever cannot be had
# ends in `skip`, which the caller defines with `say`.

MIRROR=$(awk '/^URIs:/ {print $2; exit}' /etc/apt/sources.list.d/debian.sources 2> /dev/null || true)
DAEMON=

get_engine() {
    if docker version > /dev/null 2>&1; then
        say "using the engine that runs here"
        return
    fi
    [ "$(id -u)" = 0 ] || skip "no Docker engine answers, and only root can start one"
    command -v apt-get > /dev/null || skip "no Docker engine answers, and there is no apt-get to install one"
    if ! command -v dockerd > /dev/null; then
        { timeout 120 apt-get update -qq && timeout 300 env DEBIAN_FRONTEND=noninteractive \
            apt-get install -y -qq --no-install-recommends docker.io; } > "$WORK/apt.log" 2>&1 \
            || skip "docker.io cannot be installed: $(tail -1 "$WORK/apt.log")"
    fi
    export DOCKER_HOST=unix://$WORK/d.sock DOCKER_CONFIG=$WORK/config
    _start_daemon overlay2 || _start_daemon vfs || skip "dockerd does not start: $(tail -1 "$WORK/dockerd.log")"
    say "started dockerd $(docker version --format '{{.Server.Version}}') of our own"
}

_start_daemon() { # storage driver
    setsid dockerd -H "$DOCKER_HOST" --data-root "$WORK/data" --exec-root "$WORK/exec" --pidfile "$WORK/d.pid" \
        --storage-driver="$1" --exec-opt native.cgroupdriver=cgroupfs --cgroup-parent="/fedbayes$$" \
        --bridge=none --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false > "$WORK/dockerd.log" 2>&1 &
    DAEMON=$!
    for _ in $(seq 120); do
        if docker version > /dev/null 2>&1; then
            tar -c -T /dev/null | docker import - fedbayes-probe > /dev/null 2>> "$WORK/dockerd.log" && return 0
            break # it runs, but this driver cannot store an image here
        fi
        kill -0 "$DAEMON" 2> /dev/null || break
        sleep 0.5
    done
    stop_engine
    return 1
}

stop_engine() { # ours alone
    [ -n "$DAEMON" ] || return 0
    kill "$DAEMON" 2> /dev/null
    for _ in $(seq 60); do
        kill -0 "$DAEMON" 2> /dev/null || break
        sleep 0.5
    done
    kill -9 "$DAEMON" 2> /dev/null
    wait "$DAEMON" 2> /dev/null
    DAEMON=
    find /sys/fs/cgroup -depth -type d -path "/sys/fs/cgroup/*fedbayes$$*" -exec rmdir {} \; 2> /dev/null
    awk -v work="$WORK/" 'index($2, work) == 1 {print $2}' /proc/mounts | sort -r | xargs -r umount -l
}

get_compose() {
    docker compose version > /dev/null 2>&1 && docker buildx version > /dev/null 2>&1 && return
    # The next Debian's plugins run on this one's libc; apt checks their signatures, and nothing is installed.
    [ -n "$MIRROR" ] || skip "there is no Docker Compose, and no Debian mirror is configured"
    local here=$WORK/plugins options
    export DOCKER_CONFIG=$WORK/config
    mkdir -p "$here/lists/partial" "$here/cache/archives/partial" "$here/none" "$DOCKER_CONFIG/cli-plugins"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $MIRROR trixie main" > "$here/sources.list"
    options="-qq -o Dir::Etc::sourcelist=$here/sources.list -o Dir::Etc::sourceparts=$here/none
        -o Dir::State::lists=$here/lists -o Dir::Cache=$here/cache -o APT::Sandbox::User=root"
    # shellcheck disable=SC2086  # options are words
    (cd "$here" && timeout 120 apt-get $options update && timeout 120 apt-get $options download docker-compose docker-buildx \
        && for package in *.deb; do dpkg-deb -x "$package" files; done \
        && cp files/usr/libexec/docker/cli-plugins/docker-* "$DOCKER_CONFIG/cli-plugins/") > "$WORK/plugins.log" 2>&1
    docker compose version > /dev/null 2>&1 || skip "no Docker Compose: $(tail -1 "$WORK/plugins.log")"
}

get_base() { # image
    docker image inspect "$1" > /dev/null 2>&1 || timeout 120 docker pull -q "$1" > /dev/null 2>&1 || _make_base "$1"
    docker run --rm --network none "$1" python3 -c 1 > "$WORK/run.log" 2>&1 \
        || skip "the engine cannot run a container: $(tail -1 "$WORK/run.log")"
    { docker network create "fedbayes-probe$$" \
        && docker run --rm --network "fedbayes-probe$$" --name "probe$$" "$1" \
            python3 -c "import socket; socket.gethostbyname('probe$$')" \
        && docker network rm "fedbayes-probe$$"; } > "$WORK/run.log" 2>&1 \
        || skip "the engine has no networks with names: $(tail -1 "$WORK/run.log")"
}

_make_base() { # image
    [ -n "$DAEMON" ] && [ -n "$MIRROR" ] || skip "the base image $1 cannot be had"
    command -v mmdebstrap > /dev/null || timeout 300 apt-get install -y -qq --no-install-recommends mmdebstrap \
        > "$WORK/apt.log" 2>&1 || skip "the base image $1 cannot be had, and mmdebstrap cannot be installed"
    timeout 900 mmdebstrap --quiet --variant=apt --aptopt='APT::Install-Recommends "false"' \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
        --include=python3,python3-venv,python3-pip,ca-certificates \
        --customize-hook='ln -s python3 "$1/usr/bin/python"' \
        bookworm "$WORK/base.tar" "$MIRROR" > "$WORK/base.log" 2>&1 || skip "no base image: $(tail -1 "$WORK/base.log")"
    docker import -c 'ENV PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin LANG=C.UTF-8' "$WORK/base.tar" "$1" \
        > /dev/null || skip "the base image cannot be imported"
    rm "$WORK/base.tar"
    say "made the base image from Debian packages"
}
