/** An attribute's type in OTLP. */
export type AttributeType = 'string' | 'int' | 'boolean' | 'string[]';

interface AttributeEntry {
  readonly type: AttributeType;
  readonly about: string;
}

/** Every attribute of a span, with the names of OpenTelemetry's semantic conventions 1.44 where they have one. */
export const ATTRIBUTES = {
  'cni.command': { type: 'string', about: 'ADD, DEL, CHECK, GC, STATUS, VERSION or unknown' },
  'cni.network.name': { type: 'string', about: 'name of the network configuration' },
  'container.id': { type: 'string', about: 'ID of the sandbox' },
  'network.interface.name': { type: 'string', about: 'interface in the pod' },
  'k8s.node.name': { type: 'string', about: 'node' },
  'k8s.namespace.name': { type: 'string', about: 'namespace of the pod' },
  'k8s.pod.name': { type: 'string', about: 'pod' },
  'k8s.pod.uid': { type: 'string', about: 'UID of the pod, where the runtime passes it' },
  'podwire.result': { type: 'string', about: 'success, or the name of a failure' },
  'podwire.addresses': { type: 'string[]', about: 'addresses of the attachment' },
  'podwire.attachment': { type: 'string', about: 'network/container/interface' },
  'podwire.attachments': { type: 'int', about: 'number of attachments that a call binds or returns' },
  'podwire.spooled': { type: 'boolean', about: 'true: a DEL that the shim wrote to disk while no process listened' },
  'error.type': { type: 'string', about: 'name of the failure' },
  'rpc.system.name': { type: 'string', about: 'grpc' },
  'rpc.method': { type: 'string', about: 'package.Service/Method' },
  'rpc.response.status_code': { type: 'string', about: 'name of the gRPC status' },
  'podwire.rpc.connected': { type: 'boolean', about: 'false: the call waited for a connection' },
  'server.address': { type: 'string', about: 'host, or path of the socket' },
  'server.port': { type: 'int', about: 'port' },
  'network.transport': { type: 'string', about: 'unix' },
  'db.system.name': { type: 'string', about: 'etcd or lmdb' },
  'db.operation.name': { type: 'string', about: 'txn' },
  'podwire.store.puts': { type: 'int', about: 'written records' },
  'podwire.store.deletes': { type: 'int', about: 'deleted records' },
  'podwire.store.comparisons': { type: 'int', about: 'compared records' },
  'podwire.store.group_size': { type: 'int', about: 'requests that share the transaction' },
  'podwire.store.committed': { type: 'boolean', about: 'false: a conflict; the request is decided again' },
  'podwire.node': { type: 'string', about: 'node of the request' },
  'podwire.block': { type: 'string', about: 'block of the request' },
  'podwire.pool': { type: 'string', about: 'pool of the request' },
  'podwire.handle': { type: 'string', about: 'handle of the request' },
  'podwire.dataplane.changes': { type: 'int', about: 'changes of the kernel' },
  'podwire.kernel.namespace': { type: 'string', about: 'host, pod or both' },
  'podwire.kernel.requests': { type: 'int', about: 'netlink requests of a batch' },
  'podwire.kernel.failed_operation': { type: 'string', about: 'request that the kernel refused' },
} as const satisfies Readonly<Record<string, AttributeEntry>>;

interface SpanEntry {
  readonly kind: 'INTERNAL' | 'SERVER' | 'CLIENT';
  readonly about: string;
}

/** Every span by its name, besides the spans of calls, which are named after the method: CLIENT at the caller, SERVER at the service. */
export const SPANS: Readonly<Record<string, SpanEntry>> = {
  'podwire.shim': {
    kind: 'CLIENT',
    about: 'root where the runtime sends no trace: from the start of the shim to the answer',
  },
  'CNI ADD': {
    kind: 'SERVER',
    about: 'a command in podwire-node; also CNI DEL, CHECK, GC, STATUS, VERSION, unknown',
  },
  'podwire.plugin.queue_wait': { kind: 'INTERNAL', about: 'wait for earlier commands of the attachment' },
  'podwire.plugin.replay': {
    kind: 'INTERNAL',
    about: 'root: another attempt of a pending release; links to the command that left it',
  },
  'podwire.leases.bind': {
    kind: 'INTERNAL',
    about: 'root: podwire-ipam records the addresses of pods; links to the commands that added them',
  },
  'podwire.leases.return': {
    kind: 'INTERNAL',
    about: 'root: podwire-ipam frees the addresses of deleted pods; links to the commands that deleted them',
  },
  'podwire.ipam.lane_wait': { kind: 'INTERNAL', about: 'wait for the transaction before, of the same node' },
  'podwire.store.commit': {
    kind: 'CLIENT',
    about: 'a transaction; it and the other requests that share it link to each other',
  },
  'podwire.dataplane.attach': {
    kind: 'INTERNAL',
    about: 'a call of the dataplane by a command; also detach, check, get, list, collect_garbage',
  },
  'podwire.dataplane.lock_wait': { kind: 'INTERNAL', about: 'wait for other work on the pod' },
  'podwire.kernel.open': { kind: 'INTERNAL', about: 'opening of the pod’s network namespace' },
  'podwire.kernel.observe': { kind: 'INTERNAL', about: 'reading of the pod’s interfaces, addresses and routes' },
  'podwire.kernel.batch': { kind: 'INTERNAL', about: 'netlink requests that are sent together, until their answers' },
};
