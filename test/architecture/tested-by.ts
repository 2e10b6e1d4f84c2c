/**
 * Files that do something and have no test of their own name: the test that goes through them. A file is here when what it
 * does shows only together with its callers, or when one table of cases covers several files.
 */
export const TESTED_BY: Readonly<Record<string, string>> = {
  // Seen through a real client that has no files of the contract.
  'services/dataplane/kernel/nft/tunnel-table.ts': 'services/dataplane/kernel/nft/tunnel-guard.kernel.test.ts',
  'services/dataplane/plan/mend-link.ts': 'services/dataplane/plan/diff.test.ts',
  'services/dataplane/plan/mend-neighbours.ts': 'services/dataplane/plan/diff.test.ts',
  'services/shared/rpc/reflection.ts': 'services/shared/rpc/server.test.ts',

  // Through a server whose socket somebody removes.
  'services/shared/rpc/socket-owner.ts': 'services/shared/rpc/server.test.ts',
  'services/shared/rpc/unix-listener.ts': 'services/shared/rpc/server.test.ts',

  // The border of all calls, by both kinds of them.
  'services/shared/rpc/border.ts': 'services/shared/rpc/unary.test.ts',

  // Every wrong argument of every method, through the API.
  'addon/lib/check.ts': 'addon/test/misuse.test.ts',
  'addon/lib/scalars.ts': 'addon/test/misuse.test.ts',
  'addon/lib/steps.ts': 'addon/test/misuse.test.ts',
  'addon/lib/link-steps.ts': 'addon/test/misuse.test.ts',
  // The kernel's answers, beside those of `ip`.
  'addon/lib/describe.ts': 'addon/test/kernel.test.ts',
  'addon/lib/namespace.ts': 'addon/test/kernel.test.ts',
  'addon/lib/load.ts': 'addon/test/environment.test.ts',

  // One table of refusals and one of commands, from the shim's request to the services' calls.
  'services/shared/chain/run-program.ts': 'services/shared/chain/program-versions.test.ts',
  'plugin/cni/environment.ts': 'plugin/run.test.ts',
  'plugin/cni/address-list.ts': 'plugin/cni/wish.test.ts',
  'plugin/cni/annotations.ts': 'plugin/cni/wish.test.ts',
  'plugin/cni/requested.ts': 'plugin/cni/wish.test.ts',
  'plugin/clients/ipam.ts': 'plugin/commands/requests.test.ts',
  'plugin/clients/dataplane.ts': 'plugin/commands/add.test.ts',
  'plugin/commands/wanted-pod.ts': 'plugin/commands/add.test.ts',
  'plugin/commands/undo.ts': 'plugin/commands/add.test.ts',
  'plugin/readiness-question.ts': 'plugin/readiness.test.ts',
  'plugin/request-body.ts': 'plugin/server.test.ts',
  'plugin/routes.ts': 'plugin/server.test.ts',
  'plugin/answers.ts': 'plugin/server.test.ts',
  'plugin/notices.ts': 'plugin/releases.test.ts',
  'plugin/delegate/program.ts': 'plugin/delegate/delegate.test.ts',
  'plugin/delegate/ipam-plugin.ts': 'plugin/delegate/delegate.test.ts',
  'plugin/delegate/ipam-options.ts': 'plugin/delegate/under-another-plugin.test.ts',
  'plugin/delegate/gateway.ts': 'plugin/delegate/under-another-plugin.test.ts',
  'plugin/delegate/add-addresses.ts': 'plugin/delegate/under-another-plugin.test.ts',
  'plugin/delegate/delegated-endpoint.ts': 'plugin/delegate/delegate.test.ts',
  'plugin/commands/settle-entry.ts': 'plugin/commands/del.test.ts',
  'plugin/commands/valid-attachments.ts': 'plugin/commands/gc.test.ts',
  'plugin/clients/upkeep.ts': 'plugin/commands/gc.test.ts',

  // Every command as it is typed, in front of fake services; and every command's help.
  'services/ctl/command-line/verb.ts': 'services/ctl/command-line/parse.test.ts',
  'services/ctl/clients/network-config.ts': 'services/ctl/commands/node-commands.test.ts',
  'services/ctl/clients/grpc-service.ts': 'services/ctl/commands/node-commands.test.ts',
  'services/ctl/clients/plugin-socket.ts': 'services/ctl/commands/node-commands.test.ts',
  'services/ctl/clients/reach.ts': 'services/ctl/commands/node-commands.test.ts',
  'services/ctl/commands/attributes-change.ts': 'services/ctl/commands/policy-commands.test.ts',
  'services/ctl/commands/policy-arguments.ts': 'services/ctl/commands/policy-commands.test.ts',
  'services/ctl/commands/blocks-list.ts': 'services/ctl/commands/pool-commands.test.ts',
  'services/ctl/commands/chosen-pods.ts': 'services/ctl/commands/node-commands.test.ts',
  'services/ctl/commands/endpoints-list.ts': 'services/ctl/commands/pool-commands.test.ts',
  'services/ctl/commands/journal-entry.ts': 'services/ctl/commands/journal-commands.test.ts',
  'services/ctl/commands/journal-list.ts': 'services/ctl/commands/journal-commands.test.ts',
  'services/ctl/commands/nodes-show.ts': 'services/ctl/commands/ipam-commands.test.ts',
  'services/ctl/commands/pool-deletion.ts': 'services/ctl/commands/pool-commands.test.ts',
  'services/ctl/commands/pool-options.ts': 'services/ctl/commands/pool-commands.test.ts',
  'services/ctl/commands/pools-list.ts': 'services/ctl/commands/pool-commands.test.ts',
  'services/ctl/commands/pools-show.ts': 'services/ctl/commands/pool-commands.test.ts',
  'services/ctl/commands/tenures.ts': 'services/ctl/commands/address-commands.test.ts',
  'services/ctl/run.ts': 'services/ctl/commands/ipam-commands.test.ts',

  // The installer as a node runs it: its undoing with a disk that fails, the program in a process of its own.
  'plugin/install/changes.ts': 'plugin/install/install.test.ts',

  // One table of routes, and an oracle that decides address by address.
  'services/dataplane/routing/block-routes.ts': 'services/dataplane/routing/routes.test.ts',
  'services/dataplane/routing/difference.ts': 'services/dataplane/routing/planner.test.ts',
  'services/dataplane/routing/paths.ts': 'services/dataplane/routing/routes.test.ts',

  // A pod's wire whose node's end was renamed, through the dataplane.
  'services/dataplane/kernel/host-end.ts': 'services/dataplane/host-end.test.ts',

  // As a part of what it tells of.
  'services/dataplane/cluster/address-watch.ts': 'services/dataplane/cluster/registration.test.ts',

  // Real BIRDs on real nodes, started, killed, refusing and away.
  'services/dataplane/bird/bird-process.ts': 'services/dataplane/bird/bird.kernel.test.ts',
  'services/dataplane/bird/config-file.ts': 'services/dataplane/bird/bird.kernel.test.ts',
  'services/dataplane/bird/control-socket.ts': 'services/dataplane/bird/bird.kernel.test.ts',

  // The kernel's contract, run on the real one.
  'services/dataplane/kernel/netlink/bounded-pod.ts': 'services/dataplane/kernel/netlink/netlink-kernel.test.ts',
  'services/dataplane/kernel/netlink/requests.ts': 'services/dataplane/kernel/netlink/netlink-kernel.test.ts',
  'services/dataplane/kernel/netlink/session.ts': 'services/dataplane/kernel/netlink/netlink-kernel.test.ts',
  'services/dataplane/kernel/netlink/node-observe.ts': 'services/dataplane/kernel/netlink/node-netlink-kernel.test.ts',
  'services/dataplane/kernel/netlink/node-requests.ts': 'services/dataplane/kernel/netlink/node-netlink-kernel.test.ts',

  // One loop: what comes of it shows in the kernel, after whatever was wanted and meddled with.
  'services/dataplane/kernel/memory/carry-out.ts': 'services/dataplane/kernel/memory/memory-kernel.test.ts',
  'services/dataplane/kernel/memory/node-memory-state.ts':
    'services/dataplane/kernel/memory/node-memory-kernel.test.ts',
  'services/dataplane/routing/node-facts.ts': 'services/dataplane/routing/reconcile-drift.test.ts',
  'services/dataplane/routing/reconcile-attempts.ts': 'services/dataplane/routing/reconcile-drift.test.ts',
  'services/dataplane/routing/reconcile-conditions.ts': 'services/dataplane/routing/reconcile.test.ts',
  'services/dataplane/routing/reconcile-convergence.ts': 'services/dataplane/routing/reconcile.test.ts',
  'services/dataplane/routing/reconcile-hearing.ts': 'services/dataplane/routing/reconcile-drift.test.ts',
  'services/dataplane/routing/reconcile-inbox.ts': 'services/dataplane/routing/reconcile-drift.test.ts',
  'services/dataplane/routing/reconcile-status.ts': 'services/dataplane/routing/reconcile.test.ts',
  'services/dataplane/routing/reconcile-teller.ts': 'services/dataplane/routing/reconcile-drift.test.ts',

  // The node side: what a node tells IPAM and is told, over real sockets, by the fake and by podwire-ipam itself.
  'services/dataplane/cluster/tunnel-addresses.ts': 'services/dataplane/node-side.test.ts',
  'services/dataplane/cluster/tunnel-need.ts': 'services/dataplane/node-side.test.ts',

  // Calico's contract over gRPC, by a client that has its field numbers alone.
  'services/dataplane/rpc/cni/wire.ts': 'services/dataplane/cni-service.test.ts',

  // A node that is killed, restarted, meddled with and left, on the fake kernel; IPAM's answers over the wire.
  'services/dataplane/pod-environment.ts': 'services/dataplane/service.test.ts',
  'services/dataplane/rpc/index.ts': 'services/dataplane/service.test.ts',
  'services/dataplane/attachments/mender.ts': 'services/dataplane/filled-pod.kernel.test.ts',
  'services/dataplane/attachments/giving-back.ts': 'services/dataplane/attachments/dead-namespaces.test.ts',
  'services/dataplane/attachments/survey.ts': 'services/dataplane/attachments/recovery.test.ts',
  'services/dataplane/attachments/ipam/ipam-address-book.ts': 'test/e2e/dead-pods.test.ts',

  // Parts of one decision, which is what the tables and the property are about.

  // Over the wire, with every field.
  'services/ipam/rpc/list-blocks.ts': 'services/ipam/service.test.ts',
  'services/ipam/rpc/wire-block.ts': 'services/ipam/service.test.ts',
  'services/ipam/allocator/attributes.ts': 'services/ipam/allocator/set-attributes.test.ts',
  'services/ipam/allocator/gather.ts': 'services/ipam/allocator/assign.test.ts',
  'services/ipam/allocator/absence.ts': 'services/ipam/interleavings.test.ts',
  'services/ipam/allocator/reclaim.ts': 'services/ipam/allocator/choose-block.test.ts',
  'services/ipam/allocator/stray.ts': 'services/ipam/allocator/choose-block.test.ts',
  'services/ipam/rpc/wire-allocate.ts': 'services/ipam/allocation-service.test.ts',
  'services/ipam/rpc/wire-assign.ts': 'services/ipam/allocation-service.test.ts',
  'services/ipam/rpc/wire-explain.ts': 'services/ipam/allocation-service.test.ts',
  'services/ipam/allocator/pool-holders.ts': 'services/ipam/allocator/delete-pool.test.ts',
  'services/ipam/rpc/wire-pool.ts': 'services/ipam/pool-service.test.ts',
  'services/ipam/rpc/wire-node.ts': 'services/ipam/node-service.test.ts',
  'services/ipam/rpc/wire-reservation.ts': 'services/ipam/reservation-service.test.ts',
  'services/ipam/operations/reservations.ts': 'services/ipam/reservation-service.test.ts',
  'services/ipam/rpc/wire-request-policy.ts': 'services/ipam/request-policy-service.test.ts',
  'services/ipam/rpc/wire-request.ts': 'services/ipam/request-policy-service.test.ts',
  'services/ipam/allocator/names.ts': 'services/ipam/node-service.test.ts',

  // Each kind of finding, and what repairs it, from one broken datastore after the other.
  'services/ipam/allocator/audit/judge-block.ts': 'services/ipam/allocator/audit/audit.test.ts',
  'services/ipam/allocator/audit/judge-endpoint.ts': 'services/ipam/allocator/audit/audit.test.ts',
  'services/ipam/allocator/audit/judge-foreign-endpoint.ts': 'services/ipam/allocator/left-endpoints.test.ts',
  'services/ipam/allocator/endpoint-edits.ts': 'services/ipam/allocator/left-endpoints.test.ts',
  'services/ipam/allocator/endpoint-key.ts': 'services/ipam/allocator/shared-endpoint.test.ts',
  'services/ipam/store/record-lists.ts': 'services/ipam/store/overlay.test.ts',
  'services/ipam/rpc/wire-endpoint.ts': 'services/ipam/endpoint-service.test.ts',
  'services/ipam/allocator/audit/judge-handle.ts': 'services/ipam/allocator/audit/audit.test.ts',
  'services/ipam/allocator/audit/judge-others.ts': 'services/ipam/allocator/audit/audit.test.ts',
  'services/ipam/allocator/audit/judging.ts': 'services/ipam/allocator/audit/audit.test.ts',
  'services/ipam/rpc/wire-audit.ts': 'services/ipam/audit-service.test.ts',

  // What a stream is sent, after any changes and cuts.
  'services/ipam/watch/batches.ts': 'services/ipam/watch/hub.test.ts',
  'services/ipam/watch/waiters.ts': 'services/ipam/watch/hub.test.ts',
  'services/ipam/watch/walks.ts': 'services/ipam/watch/hub.test.ts',
  // From store to file to store, cut off at each transaction.
  'services/ipam/transfer/import.ts': 'services/ipam/transfer/transfer.test.ts',

  // The store's contract, run on every store, and the mirror that is fed by it.
  'services/ipam/store/written-blocks.ts': 'services/ipam/store/overlay.test.ts',
  'services/ipam/store/change-log.ts': 'services/ipam/store/memory/memory-store.test.ts',
  // On real servers: chosen, lost, with users, TLS and limits; every setting, alone and with the others.
  'services/ipam/etcd-settings.ts': 'services/ipam/config.test.ts',
  'services/ipam/store/etcd/cluster.ts': 'services/ipam/store/etcd/faults.test.ts',
  'services/ipam/store/etcd/credentials.ts': 'services/ipam/store/etcd/etcd-limits.test.ts',
  'services/ipam/store/etcd/token.ts': 'services/ipam/store/etcd/etcd-limits.test.ts',
  'services/ipam/store/etcd/watch-responses.ts': 'services/ipam/store/etcd/watch.test.ts',
  'services/ipam/store/set-aside.ts': 'services/ipam/store/mirror.test.ts',
  'services/ipam/store/transaction.ts': 'services/ipam/store/memory/memory-store.test.ts',
  // Stored forms as Calico writes them, and their round trips.
  'services/ipam/store/record/block.ts': 'services/ipam/store/record/record.test.ts',
  'services/ipam/store/record/endpoint.ts': 'services/ipam/store/record/record.test.ts',
  'services/ipam/store/record/fields.ts': 'services/ipam/store/record/record.test.ts',
  'services/ipam/store/record/pool.ts': 'services/ipam/store/record/record.test.ts',
  'services/ipam/store/record/reservation.ts': 'services/ipam/store/record/cluster-records.test.ts',
  'services/ipam/store/record/written-endpoint.ts': 'services/ipam/store/record/packed-endpoint.test.ts',

  // Releases, claims and the history: the decisions by their tables, the rest over the wire.
  'services/ipam/operations/addresses.ts': 'services/ipam/operations/releases.test.ts',
  'services/ipam/operations/handles.ts': 'services/ipam/operations/releases.test.ts',
  'services/ipam/rpc/list-affinities.ts': 'services/ipam/release-service.test.ts',
  'services/ipam/rpc/wire-address.ts': 'services/ipam/release-service.test.ts',
  'services/ipam/rpc/wire-affinity.ts': 'services/ipam/release-service.test.ts',
  'services/ipam/rpc/wire-history.ts': 'services/ipam/release-service.test.ts',
};
