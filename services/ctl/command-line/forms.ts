import { parseAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { formatAddress, parseAddress } from '@podwire/shared/net/address';
import { suggestion } from '@podwire/shared/words/closest';

/** The result of parsing a text: its value, or why it is invalid. */
export type ReadResult<Value> =
  { readonly ok: true; readonly value: Value } | { readonly ok: false; readonly fault: string };

/** The syntax of an argument. */
export interface Form<Value> {
  /** Placeholder in the help: `NAME`. */
  readonly placeholder: string;
  /** The words that it may be, for completion. */
  readonly words?: readonly string[];
  /** The kind whose objects it may name, for completion: a name of the kind, {@link NAMESPACES} or {@link GIVEN_KIND}. */
  readonly objects?: string;
  readonly read: (text: string) => ReadResult<Value>;
}

const ok = <Value>(value: Value): ReadResult<Value> => ({ ok: true, value });
const invalid = (fault: string): ReadResult<never> => ({ ok: false, fault });

/** The namespaces of the known pods. */
export const NAMESPACES = 'namespaces';

/** The kind that the first argument of the command names. */
export const GIVEN_KIND = 'KIND';

/** Any text that is not empty. The service validates it. @param objects - of {@link Form} */
export function text(placeholder: string, objects = ''): Form<string> {
  return { placeholder, objects, read: (input) => (input === '' ? invalid('is empty') : ok(input)) };
}

export function wholeNumber(placeholder: string, { min, max }: { readonly min: number; readonly max: number }) {
  const form: Form<number> = {
    placeholder,
    read: (input) => {
      const value = Number(input);
      return /^\d+$/.test(input) && value >= min && value <= max
        ? ok(value)
        : invalid(`is not a whole number from ${min} to ${max}`);
    },
  };
  return form;
}

const MAX_UINT64 = 2n ** 64n - 1n;

/** A number of the contract's type uint64. */
export const SEQUENCE_NUMBER: Form<bigint> = {
  placeholder: 'NUMBER',
  read: (input) => {
    const value = /^\d{1,20}$/.test(input) ? BigInt(input) : undefined;
    return value !== undefined && value <= MAX_UINT64 ? ok(value) : invalid('is not a sequence number');
  },
};

/** One of a few words, each with its value. */
export function oneOf<Value>(values: Readonly<Record<string, Value>>): Form<Value> {
  const words = Object.keys(values);
  return {
    placeholder: words.join('|'),
    words,
    read: (input) => {
      const value = Object.hasOwn(values, input) ? values[input] : undefined;
      return value === undefined ? invalid(`is not one of ${words.join(', ')}${suggestion(input, words)}`) : ok(value);
    },
  };
}

export const YES_OR_NO = oneOf({ true: true, false: false });

/** An IP address in its usual form. */
export const ADDRESS: Form<string> = {
  placeholder: 'ADDRESS',
  read: (input) => {
    const [bare = '', length] = input.split('/');
    const address = parseAddress(bare);
    if (!address) return invalid('is not an IP address, such as 10.65.0.7 or fd65::7');
    const full = length === undefined || Number(length) === (address.family === 4 ? 32 : 128);
    return full ? ok(formatAddress(address)) : invalid('is a range; it must be a single address');
  },
};

/** Attachment as `pods list` and `journal list` print it. */
export const ATTACHMENT: Form<Attachment> = {
  placeholder: 'NETWORK/CONTAINER/INTERFACE',
  read: (input) => {
    const attachment = parseAttachment(input);
    return attachment
      ? ok(attachment)
      : invalid(
          'is not an attachment: NETWORK/CONTAINER/INTERFACE with the whole container ID, such as k8s-pod-network/4f1c…/eth0',
        );
  },
};

export interface PodName {
  readonly namespace: string;
  readonly name: string;
}

/** A pod as kubectl and the logs write it. */
export const POD_NAME: Form<PodName> = {
  placeholder: 'NAMESPACE/NAME',
  read: (input) => {
    const [namespace = '', name = '', ...rest] = input.split('/');
    const isPod = namespace !== '' && name !== '' && rest.length === 0;
    return isPod ? ok({ namespace, name }) : invalid('is not a pod with its namespace, such as default/web-0');
  },
};

/** An address, or a pod; its namespace may be missing. */
export type Subject = { readonly address: string } | { readonly pod: string };

export const SUBJECT_TEXT = 'an address, or a pod: NAMESPACE/NAME, or NAME in the namespace of -n (default)';

/** Subject of `who`, `history` and `trace`: a name without a namespace is a pod, unless it is an address. */
export const SUBJECT: Form<Subject> = {
  placeholder: 'ADDRESS|POD',
  read: (input) => {
    const address = ADDRESS.read(input);
    if (address.ok) return ok({ address: address.value });
    const isPod = /^[a-z0-9][a-z0-9.-]*(\/[a-z0-9][a-z0-9.-]*)?$/.test(input);
    return isPod && !/^[\d.:]+(\/\d+)?$/.test(input) ? ok({ pod: input }) : address;
  },
};

export function podOfSubject({ pod }: { readonly pod: string }, namespace = 'default'): PodName {
  const named = POD_NAME.read(pod);
  return named.ok ? named.value : { namespace, name: pod };
}

export interface Label {
  readonly key: string;
  readonly value: string;
}

export const LABEL: Form<Label> = {
  placeholder: 'KEY=VALUE',
  read: (input) => {
    const at = input.indexOf('=');
    return at < 1 ? invalid('is not KEY=VALUE') : ok({ key: input.slice(0, at), value: input.slice(at + 1) });
  },
};

const DAY_MS = 86_400_000;
const UNIT_MS: Readonly<Record<string, number>> = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: DAY_MS };

/** A duration in milliseconds: `500ms`, `10s`, `5m`, `2h`, `7d`. */
export function durationMs(maxDays: number): Form<number> {
  return {
    placeholder: 'DURATION',
    read: (input) => {
      const [, count, unit = ''] = /^(\d{1,9})(ms|s|m|h|d)$/.exec(input) ?? [];
      const unitMs = UNIT_MS[unit];
      if (count === undefined || unitMs === undefined || Number(count) === 0)
        return invalid('is not a duration, such as 500ms, 10s, 5m, 2h or 7d');
      const value = Number(count) * unitMs;
      return value <= maxDays * DAY_MS ? ok(value) : invalid(`is longer than ${maxDays}d`);
    },
  };
}

/** Up to a century, which keeps times and seconds within the contract's range. */
export const DURATION_MS = durationMs(36_500);

/** A point in time: absolute, or relative to now. */
type Moment = { readonly atMs: number } | { readonly agoMs: number };

/** @param nowMs - epoch milliseconds; a relative time counts back from it */
export function dateOf(moment: Moment, nowMs: number): Date {
  return new Date('atMs' in moment ? moment.atMs : nowMs - moment.agoMs);
}

const RFC_3339 = /^\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?([Zz]|[+-]\d{2}:\d{2})$/;

/**
 * RFC 3339 with a time zone, or a duration before now. Without a time zone the text would depend on the terminal's.
 */
export const MOMENT: Form<Moment> = {
  placeholder: 'TIME',
  read: (input) => {
    const ago = DURATION_MS.read(input);
    if (ago.ok) return ok({ agoMs: ago.value });
    const atMs = RFC_3339.test(input) ? Date.parse(input.replace(' ', 'T').toUpperCase()) : NaN;
    return Number.isNaN(atMs)
      ? invalid('is not a time, such as 2026-05-04T12:30:00Z, or 30m for thirty minutes ago')
      : ok({ atMs });
  },
};
