"""Which test shows what of each fault, and of each thing that nodes do by themselves.

Each has a simulation (trouble, then recovery, in virtual time) and a test on a real control plane
that asks the API server alone, or a scene in which the judge compares it with a real kubelet.
Faults of the control plane itself have no simulation.
tests/unit/faults/test_coverage.py checks this list against the faults and tests that exist.
"""

from typing import NamedTuple

from fleet.faults.fault import FaultType

INJECTED = "tests/sim/test_injected_faults.py::"
SHUTDOWN = "tests/sim/test_node_shutdown.py::"
SOURCES = "tests/e2e/test_pod_sources.py::"
MANAGED = "tests/e2e/test_managed_nodes.py::"
BOOTSTRAP = "tests/sim/test_bootstrapping_anew.py::"
STORAGE = "tests/sim/test_storage_faults.py::"
FAULTS = "tests/e2e/test_faults.py::test_faults_hit_whom_they_name_and_end_when_they_are_healed"
MACHINES = "tests/e2e/test_machine_faults.py::test_machines_fail_as_machines_do_and_come_back"
PLANE = "tests/e2e/test_machine_faults.py::test_the_control_plane_of_a_run_fails_and_comes_back"
NODE = "tests/e2e/test_node_faults.py::"
STUCK = "tests/sim/test_stuck_pods.py::"
STUCK_PODS = "tests/e2e/test_terminating_pods.py::test_pods_that_cannot_end_stay_until_it_is_healed"
FAMILIES = "tests/sim/test_two_families.py::"
DUAL = "tests/e2e/test_dual_stack.py::"
EDITS = "tests/sim/test_foreign_edits.py::"
EXPANSION = "tests/sim/test_volume_expansion.py::"
PUBLISHING = "tests/sim/test_csi_publishing.py::"
CSI = "tests/e2e/test_csi_nodes.py::"
RESOURCES = "tests/oracle/scenes_resources.py::"
ODD = f"{NODE}test_runtimes_links_and_processes_fail_and_are_well_again"


class Covered(NamedTuple):
    """The tests of one thing."""

    simulated: tuple[str, ...]
    real: tuple[str, ...]


def _injected(name: str, *real: str) -> Covered:
    return Covered((f"{INJECTED}{name}",), real)


_RUNTIME = "test_a_runtime_out_of_order_makes_its_node_not_ready"
_PRESSURE = "test_a_resource_that_something_uses_up_puts_its_node_under_pressure"
_DAEMONS = f"{NODE}test_daemons_say_conditions_and_take_them_back"
_UNATTACHED = f"{NODE}test_volumes_that_do_not_attach_or_mount_keep_their_pods_waiting"
_WHOLE = "tests/sim/test_pod_level_resize.py::"
_POLLING = "tests/sim/test_polled_objects_timing.py::"
_ANEW = f"{NODE}test_a_kubelet_that_restarts_admits_its_pods_anew"
BY_FAULT = {
    FaultType.HEARTBEAT_LOSS: _injected(
        "test_lost_heartbeats_make_nodes_unknown_until_they_are_healed", FAULTS
    ),
    FaultType.LATE_HEARTBEATS: _injected(
        "test_late_heartbeats_widen_the_interval_and_no_more", ODD
    ),
    FaultType.SLOW_LINK: _injected(
        "test_a_slow_link_makes_everything_late_and_breaks_nothing", ODD
    ),
    FaultType.CLOCK_SKEW: _injected(
        "test_a_skewed_clock_shows_in_what_a_node_writes",
        FAULTS,
        "tests/e2e/test_faults.py::test_a_fault_reaches_all_processes_and_ends_by_itself",
    ),
    FaultType.PARTITION: Covered(
        (
            f"{INJECTED}test_a_zone_that_is_cut_off_is_unknown_and_comes_back",
            f"{INJECTED}test_a_partition_of_one_direction_is_one_all_the_same",
        ),
        (FAULTS, MACHINES),
    ),
    FaultType.KUBELET_RESTART: _injected(
        "test_a_restart_of_a_share_is_a_storm_of_lists_and_nothing_else",
        _ANEW,
        "tests/e2e/test_forecast.py::test_a_forecast_is_near_what_the_server_counts",
    ),
    FaultType.KUBELET_DOWN: _injected(
        "test_kubelets_that_are_down_leave_their_containers_running", FAULTS
    ),
    FaultType.NODE_DOWN: _injected("test_a_machine_without_power_boots_as_another_one", MACHINES),
    FaultType.CERTIFICATE_EXPIRED: Covered(
        (
            f"{BOOTSTRAP}test_nodes_bootstrap_anew_and_lose_no_lease",
            f"{BOOTSTRAP}test_nodes_are_lost_while_nobody_signs_and_come_back",
        ),
        (f"{NODE}test_certificates_that_are_over_are_refused_and_asked_for_anew",),
    ),
    FaultType.TOKEN_EXPIRED: _injected(
        "test_nodes_whose_token_is_over_are_refused_until_they_have_another",
        f"{NODE}test_nodes_whose_token_is_over_are_refused_until_they_have_another",
    ),
    FaultType.RUNTIME_DOWN: _injected(_RUNTIME, ODD),
    FaultType.RUNTIME_NOT_READY: _injected(_RUNTIME, ODD),
    FaultType.NETWORK_NOT_READY: Covered(
        (f"{INJECTED}{_RUNTIME}", f"{INJECTED}test_a_fault_that_comes_and_goes_flaps"),
        (FAULTS, MACHINES),
    ),
    FaultType.PLEG_STALL: _injected(_RUNTIME, ODD),
    FaultType.SANDBOX_DEATH: _injected(
        "test_a_sandbox_that_dies_takes_its_containers_along", MACHINES
    ),
    FaultType.SANDBOX_FAILURE: _injected(
        "test_no_sandbox_is_made_while_the_network_plugin_fails", MACHINES
    ),
    FaultType.CONTAINER_CRASH: _injected(
        "test_containers_that_crash_again_and_again_back_off", MACHINES
    ),
    FaultType.KILL_FAILURE: Covered(
        (
            f"{STUCK}test_containers_that_cannot_be_killed_keep_their_pods",
            f"{STUCK}test_a_kill_that_hangs_is_over_as_soon_as_the_runtime_answers",
        ),
        (STUCK_PODS,),
    ),
    FaultType.SANDBOX_KILL_FAILURE: Covered(
        (f"{STUCK}test_sandboxes_that_cannot_be_stopped_keep_their_pods",), (STUCK_PODS,)
    ),
    FaultType.UNMOUNT_FAILURE: Covered(
        (f"{STUCK}test_volumes_that_do_not_unmount_keep_their_pods_without_a_word",), (STUCK_PODS,)
    ),
    FaultType.ATTACH_FAILURE: Covered(
        (f"{STORAGE}test_a_volume_that_is_not_attached_keeps_its_pod_waiting",), (_UNATTACHED,)
    ),
    FaultType.MOUNT_FAILURE: Covered(
        (f"{STORAGE}test_a_volume_that_is_not_mounted_is_told_and_keeps_its_pod_waiting",),
        (_UNATTACHED,),
    ),
    FaultType.DEVICE_FAILURE: _injected(
        "test_devices_that_fail_are_told_and_not_given_out",
        "tests/e2e/test_devices.py::test_a_gpu_fails_under_its_pod",
    ),
    FaultType.NODE_CONDITION: _injected(
        "test_a_condition_that_a_daemon_says_stays_until_it_is_healed", _DAEMONS
    ),
    FaultType.NETWORK_UNAVAILABLE: _injected(
        "test_a_condition_that_a_daemon_says_stays_until_it_is_healed", _DAEMONS
    ),
    FaultType.REGISTRY_OUTAGE: _injected("test_no_image_comes_from_a_registry_that_is_out", FAULTS),
    FaultType.MEMORY_PRESSURE: _injected(_PRESSURE, FAULTS),
    FaultType.DISK_PRESSURE: _injected(_PRESSURE, FAULTS),
    FaultType.PID_PRESSURE: _injected(
        "test_processes_run_out_where_the_profile_has_a_threshold", ODD
    ),
    FaultType.OUT_OF_MEMORY: _injected(
        "test_a_node_out_of_memory_kills_and_comes_to_rest", MACHINES
    ),
    FaultType.COMPONENT_DOWN: Covered((), (PLANE,)),
    FaultType.COMPONENT_STALL: Covered((), (PLANE,)),
}
BY_BEHAVIOR = {
    "a changed container definition restarts the container": Covered(
        ("tests/sim/test_restarts.py::test_a_changed_image_restarts_its_container_alone",),
        ("tests/oracle/scenes_lifecycle.py::changed_image",),
    ),
    "a machine reboots": BY_FAULT[FaultType.NODE_DOWN],
    "sandboxes die, or cannot be made": Covered(
        (
            *BY_FAULT[FaultType.SANDBOX_DEATH].simulated,
            *BY_FAULT[FaultType.SANDBOX_FAILURE].simulated,
        ),
        (MACHINES,),
    ),
    "a machine shuts down": Covered(
        (f"{SHUTDOWN}test_a_graceful_shutdown_ends_ordinary_pods_before_critical_ones",),
        (f"{SOURCES}test_a_node_that_shuts_down_ends_its_pods_and_falls_silent",),
    ),
    "a shutdown is cancelled": Covered(
        (f"{SHUTDOWN}test_a_shutdown_that_is_cancelled_has_ended_the_pods_all_the_same",),
        (f"{SOURCES}test_a_shutdown_that_is_cancelled_leaves_its_node_ready",),
    ),
    "a machine comes back after a shutdown": Covered(
        (f"{SHUTDOWN}test_a_machine_that_comes_back_has_booted",),
        (f"{SOURCES}test_a_machine_that_was_shut_down_boots",),
    ),
    "a restarted kubelet admits its pods anew": Covered(
        ("tests/sim/test_kubelet_restarts.py::test_pods_that_run_are_admitted_anew",), (_ANEW,)
    ),
    "a kubelet is away for so long": BY_FAULT[FaultType.KUBELET_DOWN],
    "a kubelet that starts puts its Node right": Covered(
        ("tests/sim/test_registration.py::test_a_node_that_exists_is_reconciled",),
        ("tests/e2e/test_appearance.py::test_a_node_that_is_taken_over_shows_its_new_profile",),
    ),
    "edits of what a kubelet says of its Node are put right": Covered(
        (f"{EDITS}test_edits_are_put_right_by_one_patch_each",),
        ("tests/e2e/test_edited_nodes.py::test_a_kubelet_puts_right_what_others_write",),
    ),
    "a cloud controller manager has not seen a Node yet": Covered(
        ("tests/sim/test_external_cloud.py::test_addresses_of_a_cloud_stay",),
        ("tests/e2e/test_edited_nodes.py::test_a_cloud_controller_manager_initializes_nodes",),
    ),
    "a pod range of one of two families is full": Covered(
        (f"{FAMILIES}test_a_range_of_one_family_that_is_full_holds_a_pod_up_until_another_goes",),
        (f"{DUAL}test_a_pod_waits_for_the_family_whose_range_is_full",),
    ),
    "pods of both families are adopted": Covered(
        (f"{FAMILIES}test_another_process_adopts_both_addresses_of_a_pod",),
        (f"{DUAL}test_a_service_of_both_families_leads_to_all_pods_also_after_a_restart",),
    ),
    "a Node is deleted, and made bare": Covered(
        (f"{EDITS}test_a_node_that_is_deleted_and_made_bare_gets_all_that_a_kubelet_says",),
        ("tests/e2e/test_edited_nodes.py::test_a_kubelet_puts_right_what_others_write",),
    ),
    "evicted and displaced pods that exit with 0 have succeeded": Covered(
        ("tests/sim/test_eviction.py::test_a_pod_that_is_evicted_and_ends_well_has_succeeded",),
        ("tests/oracle/scenes_admission.py::evicted", f"{RESOURCES}preempted"),
    ),
    "pods that are stuck are deleted by force": Covered(
        (f"{STUCK}test_a_pod_that_is_deleted_by_force_is_gone_and_its_containers_are_not",),
        (STUCK_PODS,),
    ),
    "Terminating pods pile up": Covered(
        (f"{STUCK}test_terminating_pods_that_pile_up_keep_their_successors_out",), (STUCK_PODS,)
    ),
    "a resize of containers is admitted, or waits": Covered(
        ("tests/sim/test_resize.py::test_a_resize_is_deferred_until_another_pod_goes",),
        (f"{RESOURCES}resized", f"{RESOURCES}deferred_resize"),
    ),
    "a resize of a pod's own resources is admitted, or waits": Covered(
        (f"{_WHOLE}test_it_waits_until_another_pod_ends",),
        (f"{RESOURCES}whole_resized",),
    ),
    "a kubelet starts anew while a resize waits": Covered(
        (f"{_WHOLE}test_a_kubelet_that_restarts_knows_what_it_had_allocated",),
        (f"{RESOURCES}resize_and_restart",),
    ),
    "ConfigMaps and Secrets are read by TTL, or each time": Covered(
        (
            f"{_POLLING}test_a_running_pod_reads_its_volume_again_when_it_is_old",
            f"{_POLLING}test_a_volume_waits_for_an_object_that_is_missing_and_misses_it_again",
        ),
        ("tests/e2e/test_object_polling.py::test_objects_are_read_and_not_watched",),
    ),
    "A runtime handler is unknown": Covered(
        ("tests/sim/test_runtime_handlers.py::test_a_pod_runs_once_its_node_has_the_handler",),
        ("tests/oracle/scenes_specs.py::classes",),
    ),
    "CSI drivers have their tokens, and their volumes published again": Covered(
        (
            f"{PUBLISHING}test_a_volume_that_is_published_again_has_new_tokens_near_their_end",
            f"{PUBLISHING}test_a_token_that_is_refused_is_told_and_asked_for_again",
        ),
        (f"{CSI}test_drivers_have_their_tokens_and_are_asked_again",),
    ),
    "a node takes another number of volumes": Covered(
        (
            "tests/sim/test_csi_node_updates.py::test_a_count_is_written_when_its_period_is_over",
            "tests/sim/test_csi_node_updates.py::test_a_full_node_says_at_once_how_many_it_takes",
        ),
        (f"{CSI}test_drivers_have_their_tokens_and_are_asked_again",),
    ),
    "volumes are expanded on the node": Covered(
        (
            f"{EXPANSION}test_a_mounted_volume_that_has_grown_is_expanded_on_its_node",
            f"{EXPANSION}test_a_refused_expansion_is_told_and_tried_again_until_it_succeeds",
        ),
        (f"{CSI}test_volumes_grow_on_their_nodes",),
    ),
    "Nodes that others make are served": Covered(
        ("tests/sim/test_nodes_of_others.py::test_pods_run_there",),
        (f"{MANAGED}test_a_node_that_others_make_is_served_until_they_delete_it",),
    ),
}
