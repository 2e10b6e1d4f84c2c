import { mkdir, readFile } from 'node:fs/promises';
import { dirname } from 'node:path';

import type { Attachment } from '@podwire/shared/attachment/attachment';
import { codeOf, messageOf } from '@podwire/shared/failure/thrown';
import { putDurably } from '@podwire/shared/files/durable-file';
import type { Logger } from '@podwire/shared/runtime/log';
import { recordInterval } from '@podwire/shared/telemetry/intervals';
import { z } from 'zod';

import type { Mode, ProviderSource } from './address-provider.js';
import { findProgram, type Delegate } from './ipam-plugin.js';

/** A delegated IPAM plugin that allocated addresses in a network: the input of its DEL, without the pod's own. */
const STORED_DELEGATE = z.strictObject({ type: z.string(), cniPath: z.string(), configuration: z.string() });

type FormerDelegate = z.infer<typeof STORED_DELEGATE>;

const NETWORK = z.strictObject({
  /** The last boot in which podwire-ipam allocated an address; null if it never did. */
  ipamBootId: z.string().nullable(),
  delegates: z.array(STORED_DELEGATE),
  /** How podwire-ipam's addresses were used: Podwire wired the pod, or another main plugin did. */
  modes: z.array(z.enum(['full', 'ipam-only'])).default([]),
});

type Network = z.infer<typeof NETWORK>;

/** A provider, and how its addresses are used, if known. */
type RecordedMode = ProviderSource & Partial<Pick<Mode, 'kind'>>;

/** The file, as JSON. */
const STORED = z.strictObject({ version: z.literal(1), networks: z.record(z.string(), NETWORK) });

const DIRECTORY_MODE = 0o700;

/** Bounds of the history: networks, and delegates of one network. The oldest are dropped. */
const MAX_NETWORKS_COUNT = 256;
const MAX_DELEGATES_COUNT = 8;

/** Keys of a configuration that belong to one pod; the rest is the same for all pods of the network. */
const POD_KEYS: readonly string[] = ['runtimeConfig', 'prevResult', 'args'];

/** Providers other than the configured one that may hold an attachment's addresses. */
interface FormerProviders {
  readonly isIpam: boolean;
  readonly delegates: readonly Delegate[];
}

interface ProviderHistoryOptions {
  /** Absolute path of the file; a missing directory is created. */
  readonly path: string;
  /** Identity of this boot. */
  readonly bootId: string;
  readonly log: Logger;
}

/**
 * The providers that allocated addresses in each network on this node: podwire-ipam and delegated IPAM plugins. DEL gets
 * today's configuration, which may name another provider than ADD's did, so DEL calls all providers of the history.
 *
 * Stored once per provider, not per pod: releasing an address that is not held succeeds. The dataplane releases
 * podwire-ipam's addresses of earlier boots. A file that cannot be written does not fail ADD, as providers change rarely.
 */
export class ProviderHistory {
  readonly #options: ProviderHistoryOptions;
  #networks = new Map<string, Network>();
  #isStored = true;
  #storing: Promise<void> = Promise.resolve();
  #lastWarning: string | undefined;

  constructor(options: ProviderHistoryOptions) {
    this.#options = options;
  }

  /** Reads the history of earlier processes. An unreadable file is logged and counts as empty. */
  async load(): Promise<void> {
    const { path, log } = this.#options;
    try {
      const { networks } = STORED.parse(JSON.parse(await readFile(path, 'utf8')));
      this.#networks = new Map([...Object.entries(networks), ...this.#networks]);
    } catch (error) {
      if (codeOf(error) === 'ENOENT') return;
      log.warn(
        { err: error, path },
        `${path} cannot be read: addresses of pods whose ipam.type was changed stay allocated until GC`,
      );
    }
  }

  /** Records the provider of a network's addresses; persisted before the provider allocates any. */
  async record(network: string, mode: RecordedMode): Promise<void> {
    const known = this.#networks.get(network) ?? { ipamBootId: null, delegates: [], modes: [] };
    const next = this.#withMode(known, mode);
    if (next !== known) {
      this.#networks.delete(network);
      this.#networks.set(network, next);
      const [oldest] = this.#networks.keys();
      if (this.#networks.size > MAX_NETWORKS_COUNT && oldest !== undefined) this.#networks.delete(oldest);
      this.#isStored = false;
    }
    if (this.#isStored) {
      // A concurrent call may be writing the same provider.
      await this.#storing;
      return;
    }
    this.#storing = this.#storing.then(() => this.#store());
    await recordInterval('address provider stored', 'plugin', () => this.#storing);
  }

  /** Providers of the attachment's network other than the configured one. */
  formerProviders(attachment: Attachment, { delegate }: ProviderSource): FormerProviders {
    const known = this.#networks.get(attachment.network)?.delegates ?? [];
    const former = known.filter(({ type }) => type !== delegate?.type);
    return {
      isIpam: delegate !== undefined && this.hasIpamAllocated(attachment.network),
      delegates: former.flatMap((one) => this.#delegateOf(one, attachment)),
    };
  }

  /** Whether podwire-ipam allocated addresses in a network since boot. */
  hasIpamAllocated(network: string): boolean {
    return this.#networks.get(network)?.ipamBootId === this.#options.bootId;
  }

  /** Whether Podwire has wired pods of a network with podwire-ipam's addresses, and no other main plugin has. */
  isAlwaysWired(network: string): boolean {
    const { modes = [] } = this.#networks.get(network) ?? {};
    return modes.includes('full') && !modes.includes('ipam-only');
  }

  #withMode(known: Network, { kind, delegate }: RecordedMode): Network {
    if (delegate) return withDelegate(known, delegate);
    const next = kind === 'ipam-only' ? known : this.#withIpam(known);
    const isUsed = kind === 'full' || kind === 'ipam-only';
    return !isUsed || next.modes.includes(kind) ? next : { ...next, modes: [...next.modes, kind] };
  }

  #withIpam(known: Network): Network {
    const { bootId } = this.#options;
    return known.ipamBootId === bootId ? known : { ...known, ipamBootId: bootId };
  }

  /** Skips a delegate whose program is missing: its addresses cannot be released, and DEL must not fail for it. */
  #delegateOf({ type, cniPath, configuration }: FormerDelegate, attachment: Attachment): Delegate[] {
    if (findProgram(type, cniPath) === undefined) {
      this.#warnOnce(
        `IPAM plugin ${type} allocated addresses in network ${attachment.network} and is missing from ${cniPath}: its addresses stay allocated`,
      );
      return [];
    }
    const { containerId, interfaceName } = attachment;
    const variables = { CNI_CONTAINERID: containerId, CNI_IFNAME: interfaceName, CNI_PATH: cniPath };
    return [{ type, configuration, variables }];
  }

  async #store(): Promise<void> {
    if (this.#isStored) return;
    const { path } = this.#options;
    this.#isStored = true;
    try {
      await mkdir(dirname(path), { recursive: true, mode: DIRECTORY_MODE });
      const networks = Object.fromEntries(this.#networks);
      await putDurably(path, `${JSON.stringify({ version: 1, networks })}\n`);
    } catch (error) {
      this.#isStored = false;
      const reason = messageOf(error);
      this.#warnOnce(
        `${path} cannot be written: ${reason}; after a change of ipam.type, addresses stay allocated until GC`,
      );
    }
  }

  #warnOnce(text: string): void {
    if (text === this.#lastWarning) return;
    this.#lastWarning = text;
    this.#options.log.warn(text);
  }
}

function withDelegate(known: Network, { type, variables, configuration }: Delegate): Network {
  const former = { type, cniPath: variables.CNI_PATH ?? '', configuration: withoutPodKeys(configuration) };
  const isKnown = known.delegates.some(
    (each) => each.type === type && each.cniPath === former.cniPath && each.configuration === former.configuration,
  );
  if (isKnown) return known;
  const rest = known.delegates.filter((each) => each.type !== type);
  return { ...known, delegates: [...rest, former].slice(-MAX_DELEGATES_COUNT) };
}

function withoutPodKeys(configuration: string): string {
  const keys = z.record(z.string(), z.unknown()).parse(JSON.parse(configuration));
  const networkKeys = Object.entries(keys).filter(([key]) => !POD_KEYS.includes(key) && !key.startsWith('cni.dev/'));
  return JSON.stringify(Object.fromEntries(networkKeys));
}
