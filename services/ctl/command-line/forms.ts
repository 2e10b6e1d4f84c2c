import { parseAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { formatAddress, parseAddress } from '@podwire/shared/net/address';

/** What came of a text: its value, or why it has none. */
export type Read<Value> = { readonly ok: true; readonly value: Value } | { readonly ok: false; readonly fault: string };

/** A form that arguments are written in. */
export interface Form<Value> {
  /** For the help: `NAME`. */
  readonly placeholder: string;
  readonly read: (text: string) => Read<Value>;
}

const ok = <Value>(value: Value): Read<Value> => ({ ok: true, value });
const wrong = (fault: string): Read<never> => ({ ok: false, fault });

/** Any text that is not empty; whether it is right decides the service. */
export function text(placeholder: string): Form<string> {
  return { placeholder, read: (given) => (given === '' ? wrong('is empty') : ok(given)) };
}

export function wholeNumber(placeholder: string, { min, max }: { readonly min: number; readonly max: number }) {
  const form: Form<number> = {
    placeholder,
    read: (given) => {
      const value = Number(given);
      return /^\d+$/.test(given) && value >= min && value <= max
        ? ok(value)
        : wrong(`is not a whole number from ${min} to ${max}`);
    },
  };
  return form;
}

const MAX_UINT64 = 2n ** 64n - 1n;

/** A number as large as the contract's uint64. */
export const SEQUENCE_NUMBER: Form<bigint> = {
  placeholder: 'NUMBER',
  read: (given) => {
    const value = /^\d{1,20}$/.test(given) ? BigInt(given) : undefined;
    return value !== undefined && value <= MAX_UINT64 ? ok(value) : wrong('is not a sequence number');
  },
};

/** One of a few words, each of which stands for a value. */
export function oneOf<Value>(values: Readonly<Record<string, Value>>): Form<Value> {
  const words = Object.keys(values);
  return {
    placeholder: words.join('|'),
    read: (given) => {
      const value = Object.hasOwn(values, given) ? values[given] : undefined;
      return value === undefined ? wrong(`is not one of ${words.join(', ')}`) : ok(value);
    },
  };
}

export const YES_OR_NO = oneOf({ true: true, false: false });

/** An IP address in its usual form. */
export const ADDRESS: Form<string> = {
  placeholder: 'ADDRESS',
  read: (given) => {
    const [bare = '', length] = given.split('/');
    const address = parseAddress(bare);
    if (!address) return wrong('is not an IP address, such as 10.65.0.7 or fd65::7');
    const full = length === undefined || Number(length) === (address.family === 4 ? 32 : 128);
    return full ? ok(formatAddress(address)) : wrong('is a range; one address is wanted');
  },
};

/** As `pods list` and `journal list` print them. */
export const ATTACHMENT: Form<Attachment> = {
  placeholder: 'NETWORK/CONTAINER/INTERFACE',
  read: (given) => {
    const attachment = parseAttachment(given);
    return attachment
      ? ok(attachment)
      : wrong('is no attachment, such as k8s-pod-network/4f1c…/eth0: network, whole container ID and interface');
  },
};

export interface PodName {
  readonly namespace: string;
  readonly name: string;
}

/** A pod as kubectl and the logs write it. */
export const POD_NAME: Form<PodName> = {
  placeholder: 'NAMESPACE/NAME',
  read: (given) => {
    const [namespace = '', name = '', ...others] = given.split('/');
    const isPod = namespace !== '' && name !== '' && others.length === 0;
    return isPod ? ok({ namespace, name }) : wrong('is no pod with its namespace, such as default/web-0');
  },
};

export interface Label {
  readonly key: string;
  readonly value: string;
}

export const LABEL: Form<Label> = {
  placeholder: 'KEY=VALUE',
  read: (given) => {
    const at = given.indexOf('=');
    return at < 1 ? wrong('is not KEY=VALUE') : ok({ key: given.slice(0, at), value: given.slice(at + 1) });
  },
};

const DAY_MS = 86_400_000;
const UNIT_MS: Readonly<Record<string, number>> = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: DAY_MS };

/** A time span in milliseconds, `500ms`, `10s`, `5m`, `2h`, `7d`, up to some days. */
export function durationMs(maxDays: number): Form<number> {
  return {
    placeholder: 'DURATION',
    read: (given) => {
      const [, count, unit = ''] = /^(\d{1,9})(ms|s|m|h|d)$/.exec(given) ?? [];
      const unitMs = UNIT_MS[unit];
      if (count === undefined || unitMs === undefined || Number(count) === 0)
        return wrong('is not a duration, such as 500ms, 10s, 5m, 2h or 7d');
      const value = Number(count) * unitMs;
      return value <= maxDays * DAY_MS ? ok(value) : wrong(`is longer than ${maxDays}d`);
    },
  };
}

/** A century: neither moments nor seconds of the contract can be out of range by it. */
export const DURATION_MS = durationMs(36_500);

/** A moment: by the clock, or by how long ago it was. */
export type Moment = { readonly atMs: number } | { readonly agoMs: number };

/** @param nowMs - what it was so long ago from, in epoch milliseconds */
export function dateOf(moment: Moment, nowMs: number): Date {
  return new Date('atMs' in moment ? moment.atMs : nowMs - moment.agoMs);
}

const RFC_3339 = /^\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?([Zz]|[+-]\d{2}:\d{2})$/;

/** RFC 3339 with its time zone, without which it would mean something else on each terminal; or a duration, for so long ago. */
export const MOMENT: Form<Moment> = {
  placeholder: 'TIME',
  read: (given) => {
    const ago = DURATION_MS.read(given);
    if (ago.ok) return ok({ agoMs: ago.value });
    const atMs = RFC_3339.test(given) ? Date.parse(given.replace(' ', 'T').toUpperCase()) : NaN;
    return Number.isNaN(atMs)
      ? wrong('is no time, such as 2026-05-04T12:30:00Z, or 30m for thirty minutes ago')
      : ok({ atMs });
  },
};
