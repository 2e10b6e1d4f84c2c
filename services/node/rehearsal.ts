import { closeSync } from 'node:fs';
import { dirname } from 'node:path';

import { NetlinkKernel } from '@podwire/dataplane/kernel/pod-kernel';
import { makeProbeNamespace } from '@podwire/dataplane/kernel/probe-kernel';
import { Events } from '@podwire/dataplane/pods/events';
import type { Kernel } from '@podwire/dataplane/pods/kernel';
import { PodWiring } from '@podwire/dataplane/pods/pods';
import { AttachmentRegistry } from '@podwire/dataplane/records/registry';
import { ProviderHistory } from '@podwire/plugin/addresses/provider-history';
import type { NodeAddresses } from '@podwire/plugin/clients/clients';
import { LocalCalls } from '@podwire/plugin/clients/local-calls';
import { ReadinessRecord } from '@podwire/plugin/commands/readiness-record';
import { DirectoryJournalStore } from '@podwire/plugin/journal/directory-store';
import { cniRequestOf } from '@podwire/plugin/requests/http-request';
import { nodeNetnsReader } from '@podwire/plugin/requests/netns';
import { composePlugin, type PluginParts } from '@podwire/plugin/service';
import type { PluginSettings } from '@podwire/plugin/settings';
import { SpoolDirectory } from '@podwire/plugin/spool/spool-directory';
import { Failure } from '@podwire/shared/failure/failure';
import { Peer } from '@podwire/shared/rpc/client';
import type { Boot } from '@podwire/shared/runtime/boot';
import type { Clock } from '@podwire/shared/runtime/clock';
import type { Logger } from '@podwire/shared/runtime/log';
import { wallClockNs } from '@podwire/shared/runtime/wall-clock';
import { withoutTelemetry } from '@podwire/shared/telemetry/instruments';

import { recordedPod } from './addresses/address-book.js';
import { inProcessDataplane } from './in-process-dataplane.js';

/** No file can be made below a device. */
const NOWHERE = '/dev/null/podwire';

/** Documentation address (RFC 5737). */
const LEASE = { address: '192.0.2.1', sequenceNumber: 1n, poolName: '' };

interface RehearsalDeps {
  readonly log: Logger;
  readonly clock: Clock;
  readonly random: () => number;
  readonly boot: Boot;
}

/**
 * Adds and deletes a pod before the first real one, which otherwise waits until V8 has compiled the code of an ADD. Node and pod
 * are network namespaces of their own, which end with this process at the latest, and the parts of the plugin are made for it alone:
 * the node, podwire-ipam and operators see nothing of it. Never rejects.
 */
export async function rehearse(settings: PluginSettings, deps: RehearsalDeps): Promise<void> {
  const log = deps.log.child({}, { level: 'silent' });
  try {
    await withoutTelemetry(() => rehearsePod(settings, { ...deps, log }));
  } catch (error) {
    deps.log.info({ err: error }, 'the rehearsal of an ADD failed: the first ADD takes longer');
  }
}

async function rehearsePod(settings: PluginSettings, deps: RehearsalDeps): Promise<void> {
  const descriptors: number[] = [];
  const makeNamespace = async (): Promise<string> => {
    const descriptor = await makeProbeNamespace();
    descriptors.push(descriptor);
    return `/proc/self/fd/${descriptor}`;
  };
  try {
    const kernel = await NetlinkKernel.open({ path: await makeNamespace() });
    const { plugin, idle } = composeRehearsal(settings, deps, kernel);
    const netns = await makeNamespace();
    try {
      for (const command of ['ADD', 'DEL']) await runCommand(plugin, { command, netns }, deps.clock);
    } finally {
      await idle();
      await kernel.close();
    }
  } finally {
    for (const descriptor of descriptors) closeSync(descriptor);
  }
}

/** @throws Failure of the command */
async function runCommand(
  { run }: Pick<PluginParts, 'run'>,
  { command, netns }: { readonly command: string; readonly netns: string },
  clock: Clock,
): Promise<void> {
  const headers = {
    'cni-command': command,
    'cni-containerid': 'rehearsal',
    'cni-netns': netns,
    'cni-ifname': 'eth0',
    'cni-args': 'IgnoreUnknown=1;K8S_POD_NAMESPACE=podwire;K8S_POD_NAME=rehearsal;K8S_POD_UID=rehearsal',
    'cni-path': '/opt/cni/bin',
  };
  const network = { cniVersion: '1.0.0', name: 'rehearsal', type: 'podwire', ipam: { type: 'podwire-ipam' } };
  const rest = { arrivedNs: wallClockNs(clock)(), cancel: new AbortController() };
  const { exitCode, stdout } = await run(cniRequestOf(headers, { configuration: JSON.stringify(network), ...rest }));
  if (exitCode !== 0) throw new Failure('INTERNAL', `${command} of a rehearsal: ${stdout.trim()}`);
}

/** The CNI commands and the dataplane, without files and without podwire-ipam. */
function composeRehearsal(settings: PluginSettings, deps: RehearsalDeps, kernel: Kernel) {
  const { log, clock, boot } = deps;
  const store = {
    load: () => Promise.resolve({ records: [], unreadable: [] }),
    put: () => Promise.resolve(),
    has: () => Promise.resolve(false),
    remove: () => Promise.resolve(),
  };
  const registry = new AttachmentRegistry({ store, bootId: boot.id, clock, onStoreFailure: () => undefined });
  const wiring = new PodWiring({ kernel, registry, events: new Events(log) });
  const garbage = { collect: () => Promise.resolve({ removed: [], failed: [] }) };
  const parts = { dataplane: wiring, garbage, isServing: () => true };
  const ipam = new Peer('podwire-ipam', settings.cniSocket);
  ipam.close();
  const { signal } = new AbortController();
  const state = {
    journalStore: new DirectoryJournalStore(NOWHERE),
    history: new ProviderHistory({ path: NOWHERE, bootId: boot.id, log }),
    readinessRecord: new ReadinessRecord({ path: NOWHERE, bootId: boot.id, log }),
    // It has no DEL of this pod.
    spoolDirectory: new SpoolDirectory(dirname(settings.cniSocket), clock),
    netns: nodeNetnsReader(boot),
    stopping: signal,
    ending: signal,
  };
  const dataplane = inProcessDataplane(parts, new LocalCalls({ clock, log }));
  const plugin = composePlugin(settings, { ...deps, nodeAddresses: addressesOf(registry), ipam, dataplane }, state);
  return { plugin, idle: () => wiring.idle() };
}

function addressesOf(registry: AttachmentRegistry): NodeAddresses {
  return {
    start: () => undefined,
    refusal: undefined,
    requireName: () => Promise.resolve(),
    take: () => Promise.resolve({ leases: [LEASE] }),
    giveBack: () => undefined,
    hasLeases: () => true,
    recorded(attachment) {
      const record = registry.get(attachment);
      return record && recordedPod(record);
    },
    isHeldByOtherPod: () => false,
    returned: () => Promise.resolve(),
    unknownAllocations: () => Promise.resolve([]),
  };
}
