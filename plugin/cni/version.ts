import { Failure } from '@podwire/shared/failure/failure';

import type { Command } from './environment.js';

/** Supported versions of the CNI specification, oldest first. The shim has the same list (shim/src/protocol.h). */
export const SUPPORTED_VERSIONS = ['0.1.0', '0.2.0', '0.3.0', '0.3.1', '0.4.0', '1.0.0', '1.1.0'] as const;

export type CniVersion = (typeof SUPPORTED_VERSIONS)[number];

/** The version of answers to requests without a valid version. */
export const OWN_VERSION: CniVersion = '1.1.0';

/** Version of a configuration without `cniVersion` (CNI specification 0.2.0, "Network Configuration"). */
const VERSION_WHEN_ABSENT: CniVersion = '0.1.0';

/** The specification version that introduced a command; unlisted commands exist in all versions. */
const SINCE: Partial<Record<Command, string>> = { CHECK: '0.4.0', GC: '1.1.0', STATUS: '1.1.0' };

/** Most characters of an invalid version that an error quotes. */
const MAX_QUOTED_CHARACTERS = 100;

/**
 * Reads a configuration's `cniVersion`.
 * @throws Failure INCOMPATIBLE_CNI_VERSION that lists the supported versions
 */
export function readVersion(stated: unknown): CniVersion {
  const version = stated === undefined || stated === null || stated === '' ? VERSION_WHEN_ABSENT : stated;
  const supported = SUPPORTED_VERSIONS.find((known) => known === version);
  if (supported !== undefined) return supported;
  throw incompatibleFailure(
    `the configuration's cniVersion is ${JSON.stringify(stated).slice(0, MAX_QUOTED_CHARACTERS)}; set it to one of ${SUPPORTED_VERSIONS.join(', ')}`,
  );
}

/**
 * Checks that the configuration's version of the specification has the command.
 * @throws Failure INCOMPATIBLE_CNI_VERSION if a later version introduced it
 */
export function requireCommand(command: Command, version: CniVersion): void {
  const since = SINCE[command];
  // Versions compare as strings: each part has one digit.
  if (since !== undefined && version < since) throw commandMissingFailure(command, version);
}

/** Whether interfaces in a result of the version have an MTU. */
export function hasResultMtu(version: CniVersion): boolean {
  return version >= '1.1.0';
}

function commandMissingFailure(command: Command, version: CniVersion): Failure {
  return incompatibleFailure(
    `${command} requires CNI ${SINCE[command] ?? OWN_VERSION}, but the configuration's cniVersion is ${version}; do not send it for this network`,
  );
}

function incompatibleFailure(message: string): Failure {
  return new Failure('INCOMPATIBLE_CNI_VERSION', message, {
    details: { 'supported versions': SUPPORTED_VERSIONS.join(', ') },
  });
}
