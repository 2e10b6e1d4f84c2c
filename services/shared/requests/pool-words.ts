import { AddressUse, AssignmentMode, EncapsulationMode } from '@podwire/proto/podwire/ipam/v1/pool';

/** Calico's words for the constants of an enum in a pool's message. */
interface ConstantWords<Word extends string, Constant extends number> {
  readonly constants: Readonly<Record<Word, Constant>>;
  /** @returns undefined for a constant that this release does not know */
  readonly wordOf: (constant: number) => Word | undefined;
}

/** @param unspecified - the word for 0; undefined if 0 is not valid */
function constantWords<Word extends string, Constant extends number>(
  constants: Readonly<Record<Word, Constant>>,
  words: readonly Word[],
  unspecified?: Word,
): ConstantWords<Word, Constant> {
  const wordOf = (constant: number): Word | undefined =>
    words.find((word) => constants[word] === constant) ?? (constant === 0 ? unspecified : undefined);
  return { constants, wordOf };
}

export const ENCAPSULATION_WORDS = ['Never', 'Always', 'CrossSubnet'] as const;
export const ENCAPSULATION_MODES = constantWords(
  {
    Never: EncapsulationMode.ENCAPSULATION_MODE_NEVER,
    Always: EncapsulationMode.ENCAPSULATION_MODE_ALWAYS,
    CrossSubnet: EncapsulationMode.ENCAPSULATION_MODE_CROSS_SUBNET,
  },
  ENCAPSULATION_WORDS,
  'Never',
);

export const USE_WORDS = ['Workload', 'Tunnel', 'LoadBalancer'] as const;
export const ADDRESS_USES = constantWords(
  {
    Workload: AddressUse.ADDRESS_USE_WORKLOAD,
    Tunnel: AddressUse.ADDRESS_USE_TUNNEL,
    LoadBalancer: AddressUse.ADDRESS_USE_LOAD_BALANCER,
  },
  USE_WORDS,
);

export const ASSIGNMENT_WORDS = ['Automatic', 'Manual'] as const;
export const ASSIGNMENT_MODES = constantWords(
  { Automatic: AssignmentMode.ASSIGNMENT_MODE_AUTOMATIC, Manual: AssignmentMode.ASSIGNMENT_MODE_MANUAL },
  ASSIGNMENT_WORDS,
  'Automatic',
);
