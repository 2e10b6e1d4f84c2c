/** Fields of FollowPoliciesResponse, PolicySet and PolicySetMember (network_policy.proto). */
const FIELD = { number: 1, isComplete: 2, sets: 3, isWhole: 2, added: 3, address: 1 } as const;

const WIRE = { varint: 0, fixed64: 1, bytes: 2, fixed32: 5 } as const;

interface PolicyMessageHead {
  readonly number: number;
  readonly isComplete: boolean;
}

/**
 * Reads what a node needs for its acknowledgement from an encoded FollowPoliciesResponse.
 * @param added - receives the IPv4 addresses that changes of its sets add; undefined to skip the sets
 */
export function parsePolicyMessage(bytes: Buffer, added: ((address: number) => void) | undefined): PolicyMessageHead {
  let [number, isComplete] = [0, false];
  eachField(bytes, (field, value, content) => {
    if (field === FIELD.number) number = value;
    else if (field === FIELD.isComplete) isComplete = value === 1;
    else if (field === FIELD.sets && added) {
      let isWhole = false;
      eachField(content, (setField, setValue, member) => {
        if (setField === FIELD.isWhole) isWhole = setValue === 1;
        if (setField !== FIELD.added || isWhole) return;
        eachField(member, (memberField, __, address) => {
          if (memberField === FIELD.address && address.length === 4) added(address.readUInt32BE());
        });
      });
    }
  });
  return { number, isComplete };
}

const NO_BYTES = Buffer.alloc(0);

function eachField(bytes: Buffer, act: (field: number, value: number, content: Buffer) => void): void {
  let at = 0;
  const varint = (): number => {
    let value = 0;
    for (let scale = 1; ; scale *= 128) {
      const byte = bytes.readUInt8(at++);
      value += (byte % 128) * scale;
      if (byte < 128) return value;
    }
  };
  while (at < bytes.length) {
    const tag = varint();
    const [field, wire] = [Math.floor(tag / 8), tag % 8];
    if (wire === WIRE.varint) act(field, varint(), NO_BYTES);
    else if (wire === WIRE.bytes) {
      const length = varint();
      act(field, 0, bytes.subarray(at, at + length));
      at += length;
    } else at += wire === WIRE.fixed64 ? 8 : 4;
  }
}
