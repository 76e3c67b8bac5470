//! A table that gives out no number again soon, so that what is late belongs to nothing else.

use std::collections::VecDeque;

/// Below this bit of a number is the place in the table; above it, how often the place has been used before.
const PLACE_BITS: u32 = 12;
/// Bits of a number in all.
const BITS: u32 = 22;

/// Things by their numbers, which are less than 2²².
pub struct Numbered<T> {
    places: Vec<Place<T>>,
    /// The place that was left first is used first.
    free: VecDeque<u32>,
    most: usize,
}

struct Place<T> {
    /// How often it has been used, modulo 2¹⁰.
    used: u32,
    thing: Option<T>,
}

impl<T> Numbered<T> {
    /// An empty table for so many things, at most 4,096.
    pub fn new(most: usize) -> Numbered<T> {
        Numbered { places: Vec::new(), free: VecDeque::new(), most: most.min(1 << PLACE_BITS) }
    }

    /// The number of the next thing. `None`: the table is full.
    pub fn next_number(&self) -> Option<u32> {
        match self.free.front() {
            Some(&place) => Some(self.number_of(place)),
            None if self.places.len() < self.most => Some(self.places.len() as u32),
            None => None,
        }
    }

    /// Adds a thing with the number [`Self::next_number`].
    pub fn insert(&mut self, thing: T) {
        match self.free.pop_front() {
            Some(place) => self.places[place as usize].thing = Some(thing),
            None => self.places.push(Place { used: 0, thing: Some(thing) }),
        }
    }

    /// The thing with this number.
    #[inline]
    pub fn get(&self, number: u32) -> Option<&T> {
        let place = self.places.get(place_of(number))?;
        place.thing.as_ref().filter(|_| place.used == used_of(number))
    }

    /// The thing with this number, to change it.
    #[inline]
    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        let place = self.places.get_mut(place_of(number))?;
        place.thing.as_mut().filter(|_| place.used == used_of(number))
    }

    /// Takes a thing out.
    pub fn take(&mut self, number: u32) -> Option<T> {
        let place = self.places.get_mut(place_of(number)).filter(|place| place.used == used_of(number))?;
        let thing = place.thing.take()?;
        place.used = (place.used + 1) & ((1 << (BITS - PLACE_BITS)) - 1);
        self.free.push_back(place_of(number) as u32);
        Some(thing)
    }

    /// All things.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.places.iter().filter_map(|place| place.thing.as_ref())
    }

    fn number_of(&self, place: u32) -> u32 {
        self.places[place as usize].used << PLACE_BITS | place
    }
}

fn place_of(number: u32) -> usize {
    (number & ((1 << PLACE_BITS) - 1)) as usize
}

fn used_of(number: u32) -> u32 {
    number >> PLACE_BITS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(table: &mut Numbered<u32>, thing: u32) -> u32 {
        let number = table.next_number().unwrap();
        table.insert(thing);
        number
    }

    #[test]
    fn a_number_belongs_to_one_thing_for_long() {
        let mut table = Numbered::new(2);
        let stays = add(&mut table, 1);
        let mut numbers = Vec::new();
        for thing in 2..5000 {
            let number = add(&mut table, thing);
            assert_eq!((table.next_number(), table.get(number), number >> BITS), (None, Some(&thing), 0));
            assert_eq!((table.take(number), table.take(number)), (Some(thing), None));
            assert_eq!((table.get(number), table.get(stays)), (None, Some(&1)));
            numbers.push(number);
        }
        assert!(numbers.windows(1000).all(|some| !some[1..].contains(&some[0])));
        assert_eq!(table.get_mut(stays).copied(), Some(1));
        assert_eq!(table.iter().count(), 1);
    }
}
