import { judge } from './judge.js';
import type { TableEntry } from './report/table.js';
import { PRESETS, subjectOf } from './subject.js';

/** Debian's plugins that this kit has a preset for. */
export const PEERS = [
  'ptp',
  'bridge',
  'macvlan',
  'loopback',
  'host-local',
  'static',
  'portmap',
  'firewall',
  'sbr',
  'tuning',
  'bandwidth',
] as const;

/** Where Debian installs them. */
const BIN_DIR = '/usr/lib/cni';

const SEED = 1;

/** The leftovers of a killed plugin depend on the moment, and that on the machine's speed: they are in no table. */
const isOfChance = (id: string) => id.startsWith('kill.');

/** Tests one of Debian's plugins with all cases whose results are reproducible. @param pid - of this process */
export async function judgePeer(name: (typeof PEERS)[number], pid: number): Promise<TableEntry> {
  const preset = PRESETS[name];
  if (preset === undefined) throw new Error(`there is no preset ${name}`);
  const subject = subjectOf({ ...preset, name, binDir: BIN_DIR });
  const verdicts = await judge({ subject, only: [], pid, seed: SEED, kills: 0, pods: 110, parallel: 16 });
  return { name, verdicts: verdicts.filter(({ id }) => !isOfChance(id)) };
}
