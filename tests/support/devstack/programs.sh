#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# stack.sh, unstack.sh and clean.sh as a plug-in sees them, without an OpenStack:
#
#     programs.sh stack|unstack|clean PLUGIN ROOT
#
# PLUGIN is a checkout with a folder devstack, ROOT a folder that stands for /. ENABLED_SERVICES, VIRT_DRIVER and the like
# come from the environment, as from local.conf. Files in ROOT show what was done; ROOT/calls has a line for each call of
# DevStack or the machine, ROOT/mistakes one for each thing that DevStack does not have.
#
# DevStack's own functions are written from its documentation and its contract: exactly those that are here may be called.
# Its own programs do not trap unset variables; here they are an error, so that a name that DevStack does not set in that
# program, or a slip, is seen.
# shellcheck disable=SC2016,SC2034  # awk's programs; what is set is for the plug-in

PROGRAM=$1 PLUGIN=$2 ROOT=$3
PATH=$ROOT/bin # the machine's commands that a plug-in may use without sudo; the caller fills it


# What DevStack has set
# ---------------------

STACK_USER=stack
DEST=${DEST:-/opt/stack}
DATA_DIR=$ROOT/opt/stack/data
ENABLED_SERVICES=${ENABLED_SERVICES-}
DISABLED_SERVICES=${DISABLED_SERVICES-}
VIRT_DRIVER=${VIRT_DRIVER:-libvirt}
PYTHON=$ROOT/bin/python3
REGION_NAME=RegionOne
SERVICE_PASSWORD=secret
SERVICE_DOMAIN_NAME=Default
SERVICE_PROJECT_NAME=service
SERVICE_HOST=192.0.2.1
SERVICE_LISTEN_ADDRESS=0.0.0.0
KEYSTONE_SERVICE_URI=http://192.0.2.1/identity
NOVA_STATE_PATH=$DATA_DIR/nova
NOVA_CONF=$ROOT/etc/nova/nova.conf
NOVA_CPU_CONF=$ROOT/etc/nova/nova-cpu.conf
PLACEMENT_CONF_DIR=$ROOT/etc/placement
PLACEMENT_CONF=$PLACEMENT_CONF_DIR/placement.conf
if [[ "$PROGRAM" == "stack" ]]; then
    SSL_BUNDLE_FILE=$DATA_DIR/ca-bundle.pem
fi


# What was done
# -------------

function _call {
    echo "$*" >> "$ROOT/calls"
}

function _mistake {
    echo "$*" >> "$ROOT/mistakes"
    return 127
}

# Called in a shell of its own, whose status a plug-in may ignore.
function command_not_found_handle {
    _mistake "neither DevStack nor the machine has: $*"
}


# DevStack's functions
# --------------------

function define_plugin {
    _call "define_plugin $*"
}

function echo_summary {
    _call "echo_summary $*"
}

function warn {
    _call "warn ${*:2}"
}

function die {
    _call "die ${*:2}"
    exit 1
}

function trueorfalse {
    case "${!2:-$1}" in
        1 | [Yy]es | YES | [Tt]rue | TRUE) echo True ;;
        0 | [Nn]o | NO | [Ff]alse | FALSE) echo False ;;
        *) echo "$1" ;;
    esac
}

function is_service_enabled {
    local service
    for service in "$@"; do
        if [[ ,$ENABLED_SERVICES, == *,$service,* ]]; then
            return 0
        fi
    done
    return 1
}

function enable_service {
    local service
    for service in "$@"; do
        if [[ ,$DISABLED_SERVICES, != *,$service,* ]] && ! is_service_enabled "$service"; then
            ENABLED_SERVICES+=,$service
        fi
    done
}

# _ini file section option awk-program: the program has `here` in lines that set the option, `head` in the section's own
function _ini {
    awk -v section="[$2]" -v option="$3" '
        /^\[/ { inside = ($0 == section) }
        { head = ($0 == section); name = $0; sub(/[ \t]*=.*/, "", name); here = inside && /=/ && name == option }
        '"$4" "$1"
}

function iniget {
    _ini "$1" "$2" "$3" 'here { sub(/^[^=]*=[ \t]*/, ""); value = $0 } END { print value }'
}

function iniget_multiline {
    _ini "$1" "$2" "$3" 'here { sub(/^[^=]*=[ \t]*/, ""); printf "%s%s", sep, $0; sep = " " }'
}

# _iniset file section option value …: the file and the section need not be there
function _iniset {
    local file=$1 section=$2 option=$3 value text lines=""
    shift 3
    for value in "$@"; do
        lines+=$'\n'"$option = $value"
    done
    [[ -e "$file" ]] || : > "$file"
    text=$(ADDED=$lines _ini "$file" "$section" "$option" '
        !here { printf "%s\n", $0 (head ? ENVIRON["ADDED"] : ""); found += head }
        END { if (!found) printf "\n%s\n", section ENVIRON["ADDED"] }')
    echo "$text" > "$file"
}

function iniset {
    _iniset "$1" "$2" "$3" "${4:-}"
}

# DevStack's splits its values at blanks.
function iniset_multiline {
    # shellcheck disable=SC2048,SC2086
    _iniset "$1" "$2" "$3" ${*:4}
}

function get_python_exec_prefix {
    echo /opt/stack/data/venv/bin
}

function setup_develop {
    _call "setup_develop $*"
}

function pip_install {
    _call "pip_install $*"
}

function install_package {
    _call "install_package $*"
}

function get_or_create_role {
    _call "role $*"
}

function get_or_create_project {
    _call "project $*"
}

function get_or_create_user {
    _call "user $*"
}

function get_or_add_user_project_role {
    _call "assignment $*"
}

function get_or_create_service {
    [[ $# == 3 ]] || _mistake "get_or_create_service takes name, type, description: $*"
    _call "service $*"
}

# By the service's type; one URL is that of all interfaces.
function get_or_create_endpoint {
    [[ $# -ge 3 ]] || _mistake "get_or_create_endpoint takes service, region, URL: $*"
    _call "endpoint $*"
}

function database_connection_url {
    echo "mysql+pymysql://root:secret@127.0.0.1/$1?charset=utf8"
}

function recreate_database {
    _call "database $*"
}

function start_tls_proxy {
    [[ $# == 5 ]] || _mistake "start_tls_proxy takes a name and two addresses: $*"
    _call "tls_proxy $*"
}

# Both do nothing for a service that is not enabled.
function run_process {
    if is_service_enabled "$1"; then
        [[ "$2" == /* ]] || _mistake "run_process without an absolute path: $2"
        _call "run_process $*"
        touch "$ROOT/active/devstack@$1.service"
    fi
}

function stop_process {
    if is_service_enabled "$1"; then
        _call "stop_process $*"
        rm -f "$ROOT/active/devstack@$1.service"
    fi
}


# The machine
# -----------

function openstack {
    _call "openstack $*"
    return "${DOCTOR_STATUS:-0}"
}

function hostname {
    echo compute1
}

function mountpoint {
    [[ "$*" == "-q $(cat "$ROOT/mounted")" ]]
}

# A kernel without NUMA has no such key.
function sysctl {
    [[ "$*" == "-n kernel.numa_balancing" ]] && cat "$ROOT/numa_balancing"
}

function getent {
    [[ "$1" == "passwd" && -e "$ROOT/users/$2" ]]
}

function systemctl {
    [[ "$1 $2" == "is-enabled --quiet" ]] || _mistake "systemctl $* without sudo"
    [[ -e "$ROOT/enabled/$3" ]]
}

# Root's commands, carried out below ROOT.
function sudo {
    local word command=$1
    local -a words=()
    shift
    _call "sudo $command $*"
    for word in "$@"; do
        if [[ "$word" == /* && "$word" != "$ROOT"/* && "$word" != "$PLUGIN"/* ]]; then
            word=$ROOT$word
        fi
        words+=("$word")
    done
    case "$command" in
        install | ln | rm) "$command" "${words[@]}" ;;
        systemctl) _systemctl "$@" ;;
        mount) [[ "${RDT:-yes}" == "yes" ]] && echo "${*: -1}" > "$ROOT/mounted" ;;
        umount) [[ "$1" == "$(cat "$ROOT/mounted")" ]] && echo > "$ROOT/mounted" ;;
        sysctl) echo "${2#*=}" > "$ROOT/numa_balancing" ;;
        systemd-sysusers) awk -v users="$ROOT/users/" '$1 == "u" { printf "" > users $2 }' "$ROOT/etc/sysusers.d/$1" ;;
        systemd-tmpfiles) _folders "$ROOT/etc/tmpfiles.d/$2" ;;
        userdel) rm "$ROOT/users/$1" ;;
        numa-host-agent-ctl) _agent_ctl "$1" ;;
        *) _mistake "sudo $command $*" ;;
    esac
}

function _folders {
    awk '$1 == "d" { print $2 }' "$1" | xargs -I{} mkdir -p "$ROOT{}"
}

# systemd knows the units that were there at the last daemon-reload.
function _systemctl {
    local verb=$1 unit now=""
    shift
    if [[ "$verb" == "daemon-reload" ]]; then
        ls "$ROOT/etc/systemd/system" > "$ROOT/units"
        return
    fi
    if [[ "$1" == "--now" ]]; then
        now=yes
        shift
    fi
    if [[ "$verb $1" == "kill --signal=KILL" ]]; then
        shift
    fi
    for unit in "$@"; do
        grep -qxF "$unit" "$ROOT/units" || _mistake "systemctl $verb $unit: no such unit"
        case "$verb$now" in
            kill) rm -f "$ROOT/active/processes of $unit" ;;
            enable) touch "$ROOT/enabled/$unit" ;;
            disable) rm -f "$ROOT/enabled/$unit" ;;
            disableyes) rm -f "$ROOT/enabled/$unit" && _stop "$unit" ;;
            start | restart) _start "$unit" ;;
            stop) _stop "$unit" ;;
            *) _mistake "systemctl $verb $*" ;;
        esac
    done
}

# An agent needs its configuration and its user; it wakes the helper, and stops the timer that runs without it.
function _start {
    touch "$ROOT/active/$1"
    if [[ "$1" == "numa-host-agent.service" ]]; then
        [[ -e "$ROOT/users/numa-host-agent" ]] || _mistake "the agent has no user"
        [[ -e "$ROOT/etc/numa-host-agent/numa-host-agent.conf" ]] || _mistake "the agent has no configuration"
        mkdir -p "$ROOT/var/lib/numa-host-agent" "$ROOT/run/numa-host-agent-helper"
        touch "$ROOT/active/numa-host-agent-helper.service" "$ROOT/run/numa-host-agent-helper.sock"
        rm -f "$ROOT/active/numa-host-agent-withdraw.timer"
        [[ "${AGENT:-good}" == "good" ]] || return 1
    elif [[ "$1" == "numa-host-agent-leases.service" ]]; then
        touch "$ROOT/active/processes of $1" # they outlive it
        [[ -e "$ROOT/active/numa-host-agent.service" ]] || _mistake "$1 before the agent's first round"
    fi
    [[ "$1" != "${BAD_UNIT:-}" ]]
}

function _stop {
    if [[ "$1" == "numa-host-agent.service" && -e "$ROOT/active/$1" ]]; then
        touch "$ROOT/active/numa-host-agent-withdraw.timer" "$ROOT/active/numa-host-agent-withdraw.service"
    fi
    rm -f "$ROOT/active/$1"
}

function _agent_ctl {
    case "$1" in
        doctor) return "${DOCTOR_STATUS:-0}" ;;
        reset)
            [[ -e "$ROOT/active/numa-host-agent-helper.socket" ]] || _mistake "reset without the helper"
            [[ ! -e "$ROOT/active/numa-host-agent.service" ]] || _mistake "reset beside the agent"
            return "${RESET_STATUS:-0}"
            ;;
        *) _mistake "numa-host-agent-ctl $1" ;;
    esac
}


# The programs
# ------------

# The arguments of a sourced file are its own.
function _phase {
    _call "phase $*"
    # shellcheck disable=SC1091
    source "$PLUGIN/devstack/plugin.sh" "$@"
    [[ $- == *x* ]] || _mistake "xtrace is off after $*"
    [[ $- == *e* ]] || _mistake "errexit is off after $*"
}

function _write_devstacks_files {
    mkdir -p "$ROOT/etc/nova" "$PLACEMENT_CONF_DIR" "$NOVA_STATE_PATH"
    printf '[DEFAULT]\nstate_path = %s\n\n[filter_scheduler]\ntrack_instance_changes = False\nenabled_filters = %s\n' \
        "$NOVA_STATE_PATH" "${NOVA_FILTERS:-ComputeFilter,ImagePropertiesFilter,SameHostFilter}" > "$NOVA_CONF"
    cp "$NOVA_CONF" "$NOVA_CPU_CONF"
    printf '[DEFAULT]\ndebug = True\n\n[api]\nauth_strategy = keystone\n' > "$PLACEMENT_CONF"
}

# Each phase twice: what is there already is no reason to fail, or to do it twice.
function _stack {
    local phase
    for phase in pre-install install post-config extra test-config; do
        if [[ "$phase" == "post-config" ]]; then
            _write_devstacks_files
        fi
        _phase stack "$phase"
        _phase stack "$phase"
        if [[ "$phase" == "post-config" && -n "${LOCAL_CONF:-}" ]]; then
            # shellcheck disable=SC2086  # file, section, option and value as in local.conf: $FILE is a variable
            eval iniset $LOCAL_CONF
        fi
    done
}

function _clean {
    rm -rf "$ROOT/etc/nova" "$DATA_DIR"
}

mkdir -p "$DATA_DIR" "$ROOT/active" "$ROOT/enabled" "$ROOT/users" "$ROOT/usr/bin" "$ROOT/etc/systemd/system"
touch "$ROOT/calls" "$ROOT/mistakes" "$ROOT/units" "$ROOT/mounted"

trap 'exit $?' ERR
set -o errexit -o nounset
if [[ "$PROGRAM" == "stack" ]]; then
    # shellcheck disable=SC1091
    source "$PLUGIN/devstack/override-defaults"
fi
# shellcheck disable=SC1091
source "$PLUGIN/devstack/settings"
set -o xtrace

case "$PROGRAM" in
    stack) _stack ;;
    unstack) _phase unstack ;;
    clean)
        _phase clean
        _clean
        ;;
esac
