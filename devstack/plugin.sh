#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# DevStack plug-in of nova-numa-ext. DevStack reads it once a phase, into a shell of its own with errexit and xtrace:
#
#     source plugin.sh stack pre-install|install|post-config|extra|test-config
#     source plugin.sh unstack
#     source plugin.sh clean
#
# Each phase can be repeated. unstack and clean of a compute host go by what is there, not by what is enabled: an agent
# that local.conf has disabled meanwhile leaves nothing either.

_NUMA_EXT_AGENT=numa-host-agent
_NUMA_EXT_HELPER=numa-host-agent-helper
_NUMA_EXT_TIMER=numa-host-agent-withdraw.timer
# Units beside the agent, each of which local.conf enables: lessors need GPUs and a transport, lanes an uplink.
_NUMA_EXT_BESIDE="numa-host-agent-leases numa-host-agent-doorman numa-host-agent-lanes"
_NUMA_EXT_PROGRAMS="$_NUMA_EXT_AGENT $_NUMA_EXT_AGENT-ctl $_NUMA_EXT_HELPER"
_NUMA_EXT_PROGRAMS+=" numa-host-agent-leases numa-host-agent-lanes"
_NUMA_EXT_POLICY=policy.d/numa-ext-host.yaml


# Configuration files
# -------------------

# What stands in the first list only, then the second list.
# numa_ext_merge "A B" "B C"
function numa_ext_merge {
    local word others=""
    for word in $1; do
        if [[ " $2 " != *" $word "* ]]; then
            others+="$word "
        fi
    done
    echo "$others$2"
}

# Sets all options of one ini file in another. Values have no blanks.
# numa_ext_set_options file options-file
function numa_ext_set_options {
    local line name section=""
    local -A values=()
    while IFS= read -r line; do
        if [[ $line == "["*"]" ]]; then
            section=${line:1:-1}
        elif [[ $line == [a-z]*" = "* ]]; then
            name="$section ${line%% = *}"
            values[$name]="${values[$name]:-} ${line#* = }"
        fi
    done < "$2"
    for name in "${!values[@]}"; do
        # shellcheck disable=SC2086  # section and option are two words, values are as many as there are
        iniset_multiline "$1" $name ${values[$name]}
    done
}

# Gives a service a user of Keystone in its section [placement].
# numa_ext_set_user file user project
function numa_ext_set_user {
    iniset "$1" placement auth_type password
    iniset "$1" placement auth_url "$KEYSTONE_SERVICE_URI"
    iniset "$1" placement username "$2"
    iniset "$1" placement password "$SERVICE_PASSWORD"
    iniset "$1" placement project_name "$3"
    iniset "$1" placement user_domain_name "$SERVICE_DOMAIN_NAME"
    iniset "$1" placement project_domain_name "$SERVICE_DOMAIN_NAME"
    iniset "$1" placement region_name "$REGION_NAME"
    if is_service_enabled tls-proxy; then
        iniset "$1" placement cafile "$SSL_BUNDLE_FILE"
    fi
}


# Controller
# ----------

# Filters and weighers of others stay, before ours: after ours stand nova's two slow filters only.
function configure_numa_ext_scheduler {
    local section=filter_scheduler options="$NUMA_EXT_DIR/devstack/options/nova.conf"
    local available filters weighers
    available=$(iniget_multiline "$NOVA_CONF" $section available_filters)
    filters=$(iniget "$NOVA_CONF" $section enabled_filters)
    weighers=$(iniget "$NOVA_CONF" $section weight_classes)

    numa_ext_set_options "$NOVA_CONF" "$options"
    available=$(numa_ext_merge "$available" "$(iniget_multiline "$options" $section available_filters)")
    filters=$(numa_ext_merge "${filters//,/ }" "$(iniget "$options" $section enabled_filters | tr , ' ')")
    weighers=$(numa_ext_merge "${weighers//,/ }" "$(iniget "$options" $section weight_classes | tr , ' ')")
    # shellcheck disable=SC2086  # one word each
    iniset_multiline "$NOVA_CONF" $section available_filters $available
    iniset "$NOVA_CONF" $section enabled_filters "${filters// /,}"
    iniset "$NOVA_CONF" $section weight_classes "${weighers// /,}"
    iniset "$NOVA_CONF" numa_ext journal_path "$NOVA_STATE_PATH/numa-ext/decisions.jsonl"
    iniset "$NOVA_CONF" numa_ext job_hint_keys "$(numa_ext_job_hint_key)"
}

# What seals the job service's scheduler hints, the same for nova-scheduler and for the service.
function numa_ext_job_hint_key {
    local file=$NUMA_EXT_DATA_DIR/job-hint-key
    if [[ -n "$NUMA_EXT_JOB_HINT_KEY" ]]; then
        echo "$NUMA_EXT_JOB_HINT_KEY"
        return
    fi
    install -d -m 0700 "$NUMA_EXT_DATA_DIR"
    if [[ ! -s "$file" ]]; then
        (
            umask 077
            head -c 32 /dev/urandom | base64 | tr '+/' '-_' > "$file"
        )
    fi
    cat "$file"
}

# What the agents' role may is a file of its own: a policy.yaml may be there.
function configure_numa_ext_placement {
    numa_ext_set_options "$PLACEMENT_CONF" "$NUMA_EXT_DIR/devstack/options/placement.conf"
    install -D -m 0644 "$NUMA_EXT_DIR/etc/placement/policy.yaml" "$PLACEMENT_CONF_DIR/$_NUMA_EXT_POLICY"
}

function create_numa_ext_flavors {
    OS_CLOUD=devstack-admin "$PYTHON" "$NUMA_EXT_DIR/devstack/lab/numa_lab/inside/catalog.py" flavors \
        < "$NUMA_EXT_DIR/devstack/lab/flavors.json"
}

function start_numa_ext_heal {
    run_process numa-ext-heal "$(get_python_exec_prefix)/numa-ext-heal --config-file $NOVA_CONF --every 60"
}


# Jobs
# ----

function numa_ext_has_jobs {
    is_service_enabled numa-ext-jobs-api numa-ext-engine
}

# Users give trusts to the service's own user; API and engine read one file, which only DevStack's user reads.
function configure_numa_ext_jobs {
    local conf=$NUMA_EXT_JOBS_CONF user=numa-ext-jobs
    get_or_create_user $user "$SERVICE_PASSWORD" "$SERVICE_DOMAIN_NAME"
    get_or_add_user_project_role service $user "$SERVICE_PROJECT_NAME" "$SERVICE_DOMAIN_NAME" "$SERVICE_DOMAIN_NAME"

    install -d -m 0700 "$NUMA_EXT_DATA_DIR"
    install -m 0600 "$NUMA_EXT_DIR/devstack/options/numa-ext-jobs.conf" "$conf"
    iniset "$conf" database connection "$(database_connection_url numa_ext)"
    iniset "$conf" keystone_authtoken www_authenticate_uri "$KEYSTONE_SERVICE_URI"
    iniset "$conf" numa_ext_jobs job_hint_keys "$(numa_ext_job_hint_key)"
    iniset "$conf" numa_ext_jobs mark_file "$NUMA_EXT_DATA_DIR/engine-mark.json"
    if is_service_enabled tls-proxy; then
        iniset "$conf" oslo_middleware enable_proxy_headers_parsing true
    fi
    numa_ext_set_user "$conf" $user "$SERVICE_PROJECT_NAME"
}

# As every stack.sh does with the databases of all services.
function init_numa_ext_jobs {
    recreate_database numa_ext
    "$PYTHON" -P -m nova_numa_ext.orchestrator.manage --config-file "$NUMA_EXT_JOBS_CONF" db sync
}

function start_numa_ext_jobs_api {
    local address=$SERVICE_LISTEN_ADDRESS:$NUMA_EXT_JOBS_PORT protocol=http
    if is_service_enabled tls-proxy; then
        address=127.0.0.1:1$NUMA_EXT_JOBS_PORT protocol=https
        start_tls_proxy numa-ext-jobs '*' "$NUMA_EXT_JOBS_PORT" 127.0.0.1 "1$NUMA_EXT_JOBS_PORT"
    fi
    get_or_create_service numa-ext-jobs numa-ext "Jobs that wait for places"
    get_or_create_endpoint numa-ext "$REGION_NAME" "$protocol://$SERVICE_HOST:$NUMA_EXT_JOBS_PORT"
    run_process numa-ext-jobs-api "$(get_python_exec_prefix)/gunicorn --env NUMA_EXT_JOBS_CONFIG=$NUMA_EXT_JOBS_CONF \
        --bind $address --workers 2 --threads 8 --timeout 60 nova_numa_ext.orchestrator.wsgi:application"
}

# The database is a new one, not an old one that was restored.
function start_numa_ext_engine {
    rm -f "$NUMA_EXT_DATA_DIR/engine-mark.json"
    run_process numa-ext-engine "$(get_python_exec_prefix)/numa-ext-engine --config-file $NUMA_EXT_JOBS_CONF"
}


# Compute host
# ------------

function check_numa_ext_host {
    if [[ "$VIRT_DRIVER" != "libvirt" ]]; then
        die $LINENO "numa-host-agent controls libvirt's domains, VIRT_DRIVER is $VIRT_DRIVER: disable numa-host-agent"
    fi
    if [[ "$DEST/" =~ ^/(home|root|tmp)/ ]]; then
        die $LINENO "numa-host-agent's units do not see $DEST: DEST has to be outside of /home, /root and /tmp"
    fi
}

# They have the agent's user and configuration. The doorman is a program of its own, which is not Python.
function check_numa_ext_beside {
    local service
    for service in $_NUMA_EXT_BESIDE; do
        if is_service_enabled "$service" && ! is_service_enabled numa-host-agent; then
            die $LINENO "$service has the user and the configuration of numa-host-agent, which is not enabled here"
        fi
    done
    if is_service_enabled numa-host-agent-doorman && ! type -P numa-ext-rgpu > /dev/null; then
        die $LINENO "numa-host-agent-doorman needs numa-ext-rgpu in /usr/bin: its package, or what make link builds"
    fi
}

# resctrl has to be there before libvirtd looks for it, and automatic NUMA balancing moves pages behind the agent's back.
function prepare_numa_ext_host {
    local balancing
    install -d -m 0700 "$NUMA_EXT_DATA_DIR"
    if ! mountpoint -q /sys/fs/resctrl; then
        if sudo mount -t resctrl resctrl /sys/fs/resctrl; then
            touch "$NUMA_EXT_DATA_DIR/resctrl-mounted"
        else
            echo_summary "No resctrl on this host: no cache partitions, and no latency-critical servers"
        fi
    fi
    if balancing=$(sysctl -n kernel.numa_balancing 2> /dev/null) && [[ "$balancing" != "0" ]]; then
        echo "$balancing" > "$NUMA_EXT_DATA_DIR/numa_balancing"
        sudo sysctl -q kernel.numa_balancing=0
    fi
}

function restore_numa_ext_host {
    if [[ -e "$NUMA_EXT_DATA_DIR/numa_balancing" ]]; then
        sudo sysctl -q "kernel.numa_balancing=$(< "$NUMA_EXT_DATA_DIR/numa_balancing")"
        rm "$NUMA_EXT_DATA_DIR/numa_balancing"
    fi
    if [[ -e "$NUMA_EXT_DATA_DIR/resctrl-mounted" ]]; then
        if mountpoint -q /sys/fs/resctrl; then
            sudo umount /sys/fs/resctrl
        fi
        rm "$NUMA_EXT_DATA_DIR/resctrl-mounted"
    fi
}

# The agent's extra without libvirt's binding, which is the distribution's here, as it is nova-compute's.
function install_numa_ext_agent {
    local bin program
    pip_install "oslo.log>=6.1" "prometheus-client>=0.20" "requests>=2.32"
    if is_service_enabled numa-host-agent-lanes; then
        install_package iproute2 nftables
    fi
    bin=$(get_python_exec_prefix)
    for program in $_NUMA_EXT_PROGRAMS; do
        sudo ln -sf "$bin/$program" "/usr/bin/$program"
    done
    sudo install -m 0644 -t /etc/systemd/system "$NUMA_EXT_DIR"/etc/systemd/numa-host-agent*
    sudo systemctl daemon-reload
    sudo install -D -m 0644 -t /etc/sysusers.d "$NUMA_EXT_DIR/etc/sysusers.d/numa-host-agent.conf"
    sudo install -D -m 0644 -t /etc/tmpfiles.d "$NUMA_EXT_DIR/etc/tmpfiles.d/numa-host-agent.conf"
    sudo systemd-sysusers numa-host-agent.conf
}

# This host's own Keystone user, with the one role that Placement's policy knows, and the agent's configuration.
function configure_numa_ext_agent {
    local conf=$NUMA_EXT_AGENT_CONF role=numa_ext_host project=numa-ext-hosts
    local user
    user=numa-ext-host-$(hostname -s)
    get_or_create_role $role
    get_or_create_project $project "$SERVICE_DOMAIN_NAME"
    get_or_create_user "$user" "$SERVICE_PASSWORD" "$SERVICE_DOMAIN_NAME"
    get_or_add_user_project_role $role "$user" $project "$SERVICE_DOMAIN_NAME" "$SERVICE_DOMAIN_NAME"

    install -m 0600 "$NUMA_EXT_DIR/devstack/options/numa-host-agent.conf" "$conf"
    iniset "$conf" host nova_conf "$NOVA_CPU_CONF"
    numa_ext_set_user "$conf" "$user" $project
}

# systemd answers when the agent has finished its first round.
function start_numa_ext_agent {
    sudo install -D -m 0640 -t /etc/numa-host-agent "$NUMA_EXT_AGENT_CONF"
    sudo systemd-tmpfiles --create numa-host-agent.conf
    sudo systemctl enable "$_NUMA_EXT_AGENT.service" "$_NUMA_EXT_HELPER.socket" "$_NUMA_EXT_TIMER"
    sudo systemctl start "$_NUMA_EXT_HELPER.socket"
    if ! sudo systemctl restart "$_NUMA_EXT_AGENT.service"; then
        die $LINENO "numa-host-agent did not finish a round: journalctl -u numa-host-agent -u numa-host-agent-helper"
    fi
}

# systemd answers when they have finished a turn; lanes and leases end with 78 where their options cannot be used.
function start_numa_ext_beside {
    local service
    for service in $_NUMA_EXT_BESIDE; do
        if is_service_enabled "$service"; then
            sudo systemctl enable "$service.service"
            if ! sudo systemctl restart "$service.service"; then
                die $LINENO "$service did not start: journalctl -u $service"
            fi
        fi
    done
}

# The processes of leases run on when their unit is stopped, so they are killed, and what would start again is stopped.
function stop_numa_ext_beside {
    local service
    for service in $_NUMA_EXT_BESIDE; do
        if systemctl is-enabled --quiet "$service.service"; then
            if [[ "$service" == "numa-host-agent-leases" ]]; then
                sudo systemctl kill --signal=KILL "$service.service"
            fi
            sudo systemctl disable --now "$service.service"
        fi
    done
}

# The helper takes back what the agent has done; stopping the agent starts the timer.
function stop_numa_ext_agent {
    if systemctl is-enabled --quiet "$_NUMA_EXT_AGENT.service"; then
        sudo systemctl disable --now "$_NUMA_EXT_AGENT.service"
        if ! sudo "$_NUMA_EXT_AGENT-ctl" reset; then
            warn $LINENO "Pins and RDT groups were not taken back: numa-host-agent-ctl reset says why"
        fi
        sudo systemctl disable --now "$_NUMA_EXT_TIMER" "$_NUMA_EXT_HELPER.socket"
        sudo systemctl stop "${_NUMA_EXT_TIMER%.timer}.service" "$_NUMA_EXT_HELPER.service"
    fi
}

function cleanup_numa_ext_agent {
    local unit program
    for unit in "$NUMA_EXT_DIR"/etc/systemd/numa-host-agent*; do
        sudo rm -f "/etc/systemd/system/${unit##*/}"
    done
    sudo systemctl daemon-reload
    for program in $_NUMA_EXT_PROGRAMS; do
        sudo rm -f "/usr/bin/$program"
    done
    sudo rm -f /etc/sysusers.d/numa-host-agent.conf /etc/tmpfiles.d/numa-host-agent.conf
    sudo rm -rf /etc/numa-host-agent /var/lib/numa-host-agent
    sudo rm -rf /run/numa-host-agent-helper /run/numa-host-agent-helper.sock
    if getent passwd numa-host-agent > /dev/null; then
        sudo userdel numa-host-agent
    fi
}

# stack.sh writes placement.conf again; clean.sh leaves its folder.
function cleanup_numa_ext_placement {
    rm -f "$PLACEMENT_CONF_DIR/$_NUMA_EXT_POLICY"
    if [[ -d "$PLACEMENT_CONF_DIR/policy.d" ]]; then
        rmdir --ignore-fail-on-non-empty "$PLACEMENT_CONF_DIR/policy.d"
    fi
}


# Phases
# ------

function numa_ext_pre_install {
    check_numa_ext_beside
    if is_service_enabled numa-host-agent; then
        check_numa_ext_host
        prepare_numa_ext_host
    fi
}

# No other extras: nova and the OpenStack client are DevStack's own here.
function numa_ext_install {
    echo_summary "Installing nova-numa-ext"
    if numa_ext_has_jobs; then
        setup_develop "$NUMA_EXT_DIR" jobs
    else
        setup_develop "$NUMA_EXT_DIR"
    fi
    if is_service_enabled numa-host-agent; then
        install_numa_ext_agent
    fi
}

function numa_ext_post_config {
    echo_summary "Configuring nova-numa-ext"
    if is_service_enabled n-sch && [[ "$NUMA_EXT_SCHEDULER" == "True" ]]; then
        configure_numa_ext_scheduler
    fi
    if is_service_enabled placement-api; then
        configure_numa_ext_placement
    fi
    if numa_ext_has_jobs; then
        configure_numa_ext_jobs
    fi
    if is_service_enabled numa-host-agent; then
        configure_numa_ext_agent
    fi
}

# Agents come before flavors that ask for what agents publish, and the job service before hosts that ask it for leases.
function numa_ext_extra {
    echo_summary "Starting nova-numa-ext"
    if is_service_enabled numa-host-agent; then
        start_numa_ext_agent
    fi
    if is_service_enabled numa-ext-heal; then
        start_numa_ext_heal
    fi
    if is_service_enabled numa-ext-jobs-api; then
        init_numa_ext_jobs
        start_numa_ext_jobs_api
    fi
    if is_service_enabled numa-ext-engine; then
        start_numa_ext_engine
    fi
    start_numa_ext_beside
    if is_service_enabled n-api && [[ "$NUMA_EXT_FLAVORS" == "True" ]]; then
        create_numa_ext_flavors
    fi
}

# What the doctors find does not end stack.sh: a controller that comes first has no host with an agent yet.
function numa_ext_test_config {
    if is_service_enabled numa-host-agent; then
        sudo numa-host-agent-ctl doctor || warn $LINENO "numa-host-agent-ctl doctor has found something"
    fi
    if is_service_enabled n-sch; then
        openstack numa doctor --nova-conf "$NOVA_CONF" || warn $LINENO "openstack numa doctor has found something"
    fi
}

function numa_ext_unstack {
    stop_process numa-ext-engine
    stop_process numa-ext-jobs-api
    stop_process numa-ext-heal
    stop_numa_ext_beside
    stop_numa_ext_agent
    restore_numa_ext_host
}

function numa_ext_clean {
    cleanup_numa_ext_agent
    cleanup_numa_ext_placement
}

case "$1 ${2:-}" in
    "stack pre-install") numa_ext_pre_install ;;
    "stack install") numa_ext_install ;;
    "stack post-config") numa_ext_post_config ;;
    "stack extra") numa_ext_extra ;;
    "stack test-config") numa_ext_test_config ;;
    "unstack "*) numa_ext_unstack ;;
    "clean "*) numa_ext_clean ;;
esac
