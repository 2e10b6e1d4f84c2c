/**
 * Files with behaviour and without a test of their own name: the test that covers them. A file is here when its behaviour
 * shows only together with its callers, or when one table of cases covers several files.
 */
export const TESTED_BY: Readonly<Record<string, string>> = {
  // Tested through a real client that has no files of the contract.
  'services/dataplane/wiring/repair-link.ts': 'services/dataplane/wiring/diff.test.ts',
  'services/dataplane/wiring/repair-neighbours.ts': 'services/dataplane/wiring/diff.test.ts',
  'services/shared/rpc/reflection.ts': 'services/shared/rpc/server.test.ts',

  // Tested with a server whose socket is deleted.
  'services/shared/sockets/socket-owner.ts': 'services/shared/rpc/server.test.ts',
  'services/shared/sockets/unix-listener.ts': 'services/shared/rpc/server.test.ts',

  // A real server and clients with certificates.
  'services/ipam/access/access-rpc.ts': 'services/ipam/access/access.test.ts',
  'services/ipam/startup/network-identity.ts': 'services/ipam/api-server/own-authority.test.ts',
  'services/shared/tls/authority.ts': 'services/shared/tls/server-tls.test.ts',
  'services/shared/tls/certificate-source.ts': 'services/shared/tls/server-tls.test.ts',
  'services/shared/tls/tls-settings.ts': 'services/ipam/config.test.ts',

  // The API server of a test, and the service in front of it.
  'services/ipam/api-server/lists.ts': 'services/ipam/api-server/object-cache.test.ts',
  'services/ipam/node-controller/cluster-state.ts': 'services/ipam/startup/start-controller.test.ts',
  'services/ipam/node-controller/node-controller.ts': 'services/ipam/startup/start-controller.test.ts',

  // All documents and queries of the folder.
  'deploy/observability/reference-documents.ts': 'deploy/observability/documents.test.ts',
  'deploy/observability/panels.ts': 'deploy/observability/queries.test.ts',

  // Every span that a trace of both processes has.
  'services/shared/telemetry/spans.ts': 'test/e2e/tracing.test.ts',

  // Every wrong argument of every method, through the API.
  'addon/lib/check.ts': 'addon/test/misuse.test.ts',
  'addon/lib/scalars.ts': 'addon/test/misuse.test.ts',
  'addon/lib/steps.ts': 'addon/test/misuse.test.ts',
  'addon/lib/link-steps.ts': 'addon/test/misuse.test.ts',
  // The kernel's answers, compared with those of `ip`.
  'addon/lib/describe.ts': 'addon/test/kernel.test.ts',
  'addon/lib/namespace.ts': 'addon/test/kernel.test.ts',
  'addon/lib/load.ts': 'addon/test/environment.test.ts',

  // One table of refusals and one of commands, from the shim's request to the services' calls.
  'services/shared/chain/run-program.ts': 'services/shared/chain/program-versions.test.ts',
  'plugin/cni/annotations.ts': 'plugin/cni/pod-request.test.ts',
  'plugin/clients/ipam.ts': 'plugin/commands/requests.test.ts',
  'plugin/clients/local-calls.ts': 'services/node/in-process-dataplane.test.ts',
  'plugin/routes.ts': 'plugin/server.test.ts',
  'plugin/requests/http-request.ts': 'plugin/server.test.ts',
  'plugin/spool/spooled-del.ts': 'plugin/spool/spool.test.ts',
  'plugin/addresses/providers.ts': 'plugin/addresses/provider-history.test.ts',
  'plugin/addresses/plugin-addresses.ts': 'plugin/addresses/delegated-addresses.test.ts',

  // A real service and its clients.
  'services/ipam/leases/inventory-rpc.ts': 'services/ipam/leases/leases-rpc.test.ts',
  'services/ipam/leases/leases-operations.ts': 'services/ipam/leases/leases-rpc.test.ts',
  'services/ipam/leases/session-rpc.ts': 'services/ipam/leases/leases-rpc.test.ts',

  // Every command as it is typed, with fake services; and every command's help.
  'services/ctl/command-line/verb.ts': 'services/ctl/command-line/program.test.ts',
  'services/ctl/clients/network-config.ts': 'services/ctl/commands/node-commands.test.ts',
  'services/ctl/clients/services.ts': 'services/ctl/commands/node-commands.test.ts',
  'services/ctl/clients/plugin-socket.ts': 'services/ctl/commands/node-commands.test.ts',
  'services/ctl/command-line/service-settings.ts': 'services/ctl/clients/reach.test.ts',
  'services/ctl/certificates/certificate-files.ts': 'services/ctl/certificates/create.test.ts',
  'services/shared/tls/authority-directory.ts': 'services/ipam/api-server/own-authority.test.ts',
  'services/ipam/api-server/token-signatures.ts': 'services/ipam/api-server/node-tokens.test.ts',
  'services/ipam/api-server/token-review.ts': 'services/ipam/api-server/node-tokens.test.ts',
  'services/ctl/resources/table.ts': 'services/ctl/resources/reading.test.ts',
  'services/ipam/certificates/revocation-rpc.ts': 'services/ipam/certificates/revocation.test.ts',
  'services/ctl/resources/block.ts': 'services/ctl/resources/reading.test.ts',
  'services/ctl/resources/ippool.ts': 'services/ctl/resources/reading.test.ts',
  'services/ctl/resources/workloadendpoint.ts': 'services/ctl/resources/reading.test.ts',
  'services/ctl/resources/manifest.ts': 'services/ctl/resources/writing.test.ts',
  'services/ctl/resources/resource.ts': 'services/ctl/resources/writing.test.ts',
  'services/ctl/clients/terminal.ts': 'services/ctl/resources/writing.test.ts',
  'services/ctl/resources/ipamconfig.ts': 'services/ctl/commands/ipam-commands.test.ts',
  'services/ctl/commands/audit.ts': 'services/ctl/commands/ipam-commands.test.ts',
  'services/ctl/commands/release.ts': 'services/ctl/commands/address-commands.test.ts',
  'services/ctl/commands/who.ts': 'services/ctl/commands/address-commands.test.ts',
  'services/ctl/resources/pods.ts': 'services/ctl/commands/node-commands.test.ts',
  'services/ctl/commands/history.ts': 'services/ctl/commands/address-commands.test.ts',
  'services/ctl/run.ts': 'services/ctl/commands/ipam-commands.test.ts',

  // One table of routes, and an oracle that decides address by address.
  'services/dataplane/routes/block-routes.ts': 'services/dataplane/routes/routes.test.ts',

  // Real BIRDs on real nodes, started, killed, refusing and down.
  'services/dataplane/kernel/proc-directory.ts': 'services/dataplane/test/proc-directory.kernel.test.ts',
  'services/dataplane/bird/bird-process.ts': 'services/dataplane/bird/bird.kernel.test.ts',

  // The kernel's contract, run on the real one.
  'services/dataplane/kernel/bounded-pod.ts': 'services/dataplane/kernel/pod-kernel.test.ts',
  'services/dataplane/kernel/pod-session.ts': 'services/dataplane/kernel/pod-kernel.test.ts',

  // One loop: the test compares the kernel's state after arbitrary requests and outside changes.
  'services/dataplane/routes/convergence.ts': 'services/dataplane/routes/reconciler-drift.test.ts',
  'services/dataplane/routes/round.ts': 'services/dataplane/routes/reconciler-drift.test.ts',
  'services/dataplane/routes/status.ts': 'services/dataplane/routes/reconciler.test.ts',
  'services/dataplane/routes/kernel-events.ts': 'services/dataplane/routes/reconciler-drift.test.ts',
  'services/dataplane/conditions/reporter.ts': 'services/dataplane/routes/reconciler-drift.test.ts',

  // The node side: its exchange with IPAM, over real sockets, with the fake and with podwire-ipam.
  'services/dataplane/node/tunnel-addresses.ts': 'services/dataplane/startup.test.ts',

  // A node that is killed, restarted, changed by another program and left, on the fake kernel.

  // The node's addresses, with podwire-ipam in memory: one scenario each, then arbitrary faults.
  'services/node/addresses/open.ts': 'test/e2e/leases.test.ts',
  'services/node/addresses/stock.ts': 'services/node/addresses/address-book.test.ts',

  // Over gRPC, with every field.
  'services/ipam/blocks/blocks-rpc.ts': 'services/ipam/service.test.ts',
  'services/ipam/records/absence.ts': 'services/ipam/test/interleavings.test.ts',
  'services/ipam/addresses/assign-rpc.ts': 'services/ipam/addresses/allocate/allocate-rpc.test.ts',
  'services/ipam/reservations/reservations-operations.ts': 'services/ipam/reservations/reservations-rpc.test.ts',
  'services/ipam/messages/request-parts.ts': 'services/ipam/request-policies/request-policies-rpc.test.ts',

  // Each kind of finding, and its repair, in one damaged datastore after another.
  'services/ipam/audit/block-findings.ts': 'services/ipam/audit/audit.test.ts',
  'services/ipam/audit/endpoint-findings.ts': 'services/ipam/audit/audit.test.ts',
  'services/ipam/audit/foreign-endpoint-findings.ts': 'services/ipam/addresses/left-endpoints.test.ts',
  'services/ipam/blocks/running-nodes-operations.ts': 'services/ipam/test/running-nodes.test.ts',
  'services/ipam/blocks/running-nodes.ts': 'services/ipam/test/running-nodes.test.ts',
  'services/ipam/blocks/endpoint-edits.ts': 'services/ipam/addresses/left-endpoints.test.ts',
  'services/ipam/blocks/endpoint-key.ts': 'services/ipam/addresses/shared-endpoint.test.ts',
  'services/ipam/audit/record-findings.ts': 'services/ipam/audit/audit.test.ts',

  // The messages of a stream, after any changes and cuts.
  'services/ipam/watch/batches.ts': 'services/ipam/watch/hub.test.ts',
  'services/ipam/watch/wait-queue.ts': 'services/ipam/watch/hub.test.ts',
  // From store to file to store, interrupted at each transaction.
  'services/ipam/transfer/import.ts': 'services/ipam/transfer/transfer.test.ts',

  // The store's contract, run on every store, and the mirror that reads from it.
  'services/ipam/engine/change-log.ts': 'services/ipam/engine/testing/memory-store.test.ts',
  // Tested on real servers: selection, loss, users, TLS, limits; every setting, alone and combined.
  'services/ipam/engine/etcd/cluster.ts': 'services/ipam/engine/etcd/faults.test.ts',
  'services/ipam/engine/etcd/credentials.ts': 'services/ipam/engine/etcd/certificates.test.ts',
  'services/ipam/engine/transaction.ts': 'services/ipam/engine/testing/memory-store.test.ts',
  // Stored forms as Calico writes them, and their round trips.
  'services/ipam/records/json/config.ts': 'services/ipam/records/json/cluster-records.test.ts',
  'services/ipam/records/json/fields.ts': 'services/ipam/records/json/registry.test.ts',
  'services/ipam/records/json/pool.ts': 'services/ipam/records/json/registry.test.ts',
  'services/ipam/records/json/reservation.ts': 'services/ipam/records/json/cluster-records.test.ts',
  'services/ipam/records/json/session.ts': 'services/ipam/records/json/cluster-records.test.ts',

  // Releases, claims and the history: the decisions by their tables, the rest over gRPC.
  'services/ipam/handles/handles-rpc.ts': 'services/ipam/addresses/addresses-operations.test.ts',
  'services/ipam/affinities/affinities-rpc.ts': 'services/ipam/addresses/addresses-rpc.test.ts',
  'services/ipam/history/history-rpc.ts': 'services/ipam/addresses/addresses-rpc.test.ts',

  // Through the operations and handlers that use them.
  'services/ipam/blocks/lookup.ts': 'services/ipam/blocks/search.test.ts',
  'services/ipam/blocks/node-shares.ts': 'services/ipam/test/node-shares.test.ts',
  'services/ipam/configuration/configuration-rpc.ts': 'services/ipam/configuration/configuration.test.ts',
  'services/ipam/engine/updates/operation.ts': 'services/ipam/pools/pools-operations.test.ts',
  'services/ipam/messages/parts.ts': 'services/ipam/addresses/allocate/allocate-rpc.test.ts',
};
