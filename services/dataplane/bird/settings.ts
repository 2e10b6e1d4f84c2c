import { readFile } from 'node:fs/promises';

import type { SettingValues } from '@podwire/shared/settings/config-reader';
import { oneOf, wholeNumber } from '@podwire/shared/settings/setting';
import { z } from 'zod';

import type { BirdSettings } from './bird.js';
import { FULL_MESH, readPeersFile, type PeerPlan } from './peers-file.js';

const NO_EFFECT = 'No effect unless PODWIRE_ROUTING is bird.';

/** Paths are quoted in BIRD's configuration. */
const path = z.string().regex(/^\/[^"\p{Cc}]+$/u, 'must be an absolute path without quotation marks');
const optionalPath = z.union([z.literal(''), path], 'must be an absolute path without quotation marks');

/** The BIRD settings of the dataplane. */
export const BIRD_SETTINGS = {
  routing: {
    variable: 'PODWIRE_ROUTING',
    schema: oneOf(['native', 'bird', 'none']),
    default: 'native',
    about:
      'Program that routes to blocks of pools without encapsulation: native (the dataplane, between nodes of one subnet) or bird ' +
      '(BIRD 2, from BGP); the dataplane programs tunnels and their routes. none: no tunnels and no routes to blocks, where ' +
      'another plugin connects the pods, such as bridge.',
  },
  birdPeersFile: {
    variable: 'PODWIRE_BIRD_PEERS_FILE',
    schema: optionalPath,
    default: '',
    about: `Absolute path of a file, YAML or JSON, with BGP peers and route reflectors; empty for a full mesh of the nodes. Read at the start. ${NO_EFFECT}`,
  },
  birdAsNumber: {
    variable: 'PODWIRE_BIRD_AS_NUMBER',
    schema: wholeNumber(1, 4_294_967_295),
    default: '64512',
    about: `Autonomous system of nodes without their own, 1 to 4294967295. ${NO_EFFECT}`,
  },
  birdConfigFile: {
    variable: 'PODWIRE_BIRD_CONFIG_FILE',
    schema: path,
    default: '/etc/bird/podwire.conf',
    about: `Absolute path of BIRD's configuration, which the dataplane writes. Its directory's group can read it. Start BIRD with it (bird -c). ${NO_EFFECT}`,
  },
  birdControlSocket: {
    variable: 'PODWIRE_BIRD_CONTROL_SOCKET',
    schema: path,
    default: '/run/bird/bird.ctl',
    about: `Absolute path of BIRD's control socket (bird -s). ${NO_EFFECT}`,
  },
  birdRun: {
    variable: 'PODWIRE_BIRD_RUN',
    schema: oneOf(['external', 'child']),
    default: 'external',
    about: `Owner of the BIRD process: external (the operator) or child (the dataplane, unless a BIRD answers at the control socket). ${NO_EFFECT}`,
  },
  birdProgram: {
    variable: 'PODWIRE_BIRD_PROGRAM',
    schema: z.string().regex(/^(?!-)[^\p{Cc}]+$/u, 'must be a name or path of a program'),
    default: 'bird',
    about: `Name or absolute path of the program bird. It runs as a child, and checks configurations while no BIRD answers. ${NO_EFFECT}`,
  },
  birdPollMs: {
    variable: 'PODWIRE_BIRD_POLL_MS',
    schema: wholeNumber(100, 600_000),
    default: '5000',
    about: `Interval for polling BIRD's sessions, and for reconnecting to BIRD, in milliseconds, 100 to 600000. ${NO_EFFECT}`,
  },
} as const;

type BirdConfig = SettingValues<typeof BIRD_SETTINGS>;

/**
 * Reads the BGP topology.
 * @returns undefined when BIRD is disabled
 * @throws Failure INVALID_SETTINGS that lists every fault of the file
 */
export async function readPeerPlan({ routing, birdPeersFile }: BirdConfig): Promise<PeerPlan | undefined> {
  if (routing !== 'bird') return undefined;
  if (birdPeersFile === '') return FULL_MESH;
  return readPeersFile(birdPeersFile, (at) => readFile(at, 'utf8'));
}

export function birdSettings(config: BirdConfig, plan: PeerPlan): BirdSettings {
  return {
    plan,
    asNumber: config.birdAsNumber,
    run: config.birdRun,
    pollMs: config.birdPollMs,
    files: { program: config.birdProgram, configPath: config.birdConfigFile, socketPath: config.birdControlSocket },
  };
}
